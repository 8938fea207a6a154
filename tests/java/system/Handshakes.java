// A TLS client that renegotiates, or updates its keys, while it sends ApiVersions:
// Handshakes PORT CA.PEM renegotiate|update REQUESTS. It prints the number of answers, and why it ended.

import java.io.DataInputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.security.KeyStore;
import java.security.Security;
import java.security.cert.CertificateFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

public final class Handshakes {
    private static final int BESIDE = 100;

    public static void main(String[] given) throws Exception {
        boolean again = given[2].equals("renegotiate");
        Security.setProperty("jdk.tls.keyLimits", "AES/GCM/NoPadding KeyUpdate 2^12");
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        try (FileInputStream file = new FileInputStream(given[1])) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance("PKIX");
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        int answered = 0;
        try (SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket("127.0.0.1", Integer.parseInt(given[0]))) {
            socket.setEnabledProtocols(new String[] {again ? "TLSv1.2" : "TLSv1.3"});
            socket.setEnabledCipherSuites(new String[] {
                again ? "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" : "TLS_AES_128_GCM_SHA256",
                again ? "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" : "TLS_AES_256_GCM_SHA384",
            });
            socket.setSoTimeout(10_000);
            OutputStream out = socket.getOutputStream();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            // ApiVersions 0 of a client without a name
            byte[] request = ByteBuffer.allocate(14).putInt(10).putShort((short) 18).putShort((short) 0)
                .putInt(7).putShort((short) -1).array();
            int requests = Integer.parseInt(given[3]);
            while (answered < requests) {
                for (int i = 0; i < BESIDE; i++) {
                    out.write(request);
                }
                for (int i = 0; i < BESIDE; i++) {
                    in.readFully(new byte[in.readInt()]);
                    answered++;
                }
                if (again) {
                    socket.startHandshake();
                }
            }
            System.out.println("answered " + answered);
        } catch (IOException error) {
            System.out.println("answered " + answered + ", then " + error);
        }
    }
}
