import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;

/**
 * Reads `NAME VERSION HEX` lines, and answers each with the same message written again by Kafka's own code, in hex; with
 * `absent` where this Kafka lacks the message or the version; or with `error` and what it did not like. A line
 * `partition N HEX` is answered with the partition, of N, that Kafka's producer chooses for a key.
 */
public class Parity {
    private static final String[] NAMES = {
        "org.apache.kafka.common.message.%sData",
        "org.apache.kafka.common.message.%s",
        "org.apache.kafka.common.metadata.%s",
        "org.apache.kafka.coordinator.group.generated.%s",
        "org.apache.kafka.coordinator.transaction.generated.%s",
        "kafka.internals.generated.%s",
    };

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", -1);
            byte[] data = HexFormat.of().parseHex(words[2]);
            System.out.println(words[0].equals("partition")
                ? String.valueOf(BuiltInPartitioner.partitionForKey(data, Integer.parseInt(words[1])))
                : again(words[0], Short.parseShort(words[1]), data));
        }
    }

    private static String again(String name, short version, byte[] data) throws Exception {
        Class<?> kind = find(name);
        if (kind == null || version < limit(kind, "LOWEST") || version > limit(kind, "HIGHEST")) {
            return "absent";
        }
        ByteBuffer buffer = ByteBuffer.wrap(data);
        try {
            Message message = (Message) kind.getConstructor(Readable.class, short.class)
                .newInstance(new ByteBufferAccessor(buffer), version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            byte[] bytes = new byte[message.size(cache, version)];
            message.write(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), cache, version);
            return buffer.hasRemaining() ? "error " + buffer.remaining() + " bytes left" : HexFormat.of().formatHex(bytes);
        } catch (InvocationTargetException e) {
            return "error " + e.getCause();
        } catch (RuntimeException e) {
            return "error " + e;
        }
    }

    private static Class<?> find(String name) {
        for (String pattern : NAMES) {
            try {
                return Class.forName(String.format(pattern, name));
            } catch (ClassNotFoundException e) {
                // The next one may have it.
            }
        }
        return null;
    }

    private static short limit(Class<?> kind, String end) throws Exception {
        return kind.getField(end + "_SUPPORTED_VERSION").getShort(null);
    }
}
