import java.util.Arrays;

import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.security.PasswordEncoder;

/** Decrypts texts with a secret and Kafka's own PasswordEncoder, and prints a line for each. */
public class Decoder {
    public static void main(String[] arguments) throws Exception {
        Password secret = new Password(arguments[0]);
        PasswordEncoder encoder = PasswordEncoder.encrypting(secret, null, "AES/CBC/PKCS5Padding", 128, 4096);
        for (String text : Arrays.asList(arguments).subList(1, arguments.length)) {
            System.out.println(encoder.decode(text).value());
        }
    }
}
