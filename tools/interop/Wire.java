import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads messages of Kafka's protocol with Kafka's own classes, and writes them again.
 *
 * Each line of standard input is one message, its fields divided by tabs: "request" or "response", the number of the API,
 * the version, and the bytes in hexadecimal. The file of -Dtarget gets a line for each: the bytes that Kafka writes; "!"
 * and an error if Kafka refuses them, or does not take them all.
 */
public class Wire {
    static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws IOException {
        Watchdog.start();
        try (var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
                var answers = Files.newBufferedWriter(Path.of(System.getProperty("target")))) {
            for (String line; (line = lines.readLine()) != null; ) {
                answers.write(answer(line.split("\t", -1)));
                answers.write('\n');
            }
        }
    }

    static String answer(String[] fields) {
        try {
            var type = ApiMessageType.fromApiKey(Short.parseShort(fields[1]));
            ApiMessage message = fields[0].equals("request") ? type.newRequest() : type.newResponse();
            short version = Short.parseShort(fields[2]);
            var data = ByteBuffer.wrap(HEX.parseHex(fields[3]));
            message.read(new ByteBufferAccessor(data), version);
            if (data.hasRemaining()) {
                return "!" + data.remaining() + " bytes are left";
            }
            var cache = new ObjectSerializationCache();
            var written = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(written), cache, version);
            return HEX.formatHex(written.array(), 0, written.position());
        } catch (Throwable e) {
            return "!" + e;
        }
    }

    /** Ends the JVM after -Dseconds, whatever it is doing. */
    static class Watchdog {
        static void start() {
            var thread = new Thread(() -> {
                try {
                    Thread.sleep(Long.getLong("seconds", 300) * 1000);
                } catch (InterruptedException e) {
                    return;
                }
                Runtime.getRuntime().halt(124);
            });
            thread.setDaemon(true);
            thread.start();
        }
    }
}
