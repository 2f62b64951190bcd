import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.StringJoiner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.CompressionType;
// BufferSupplier, which Kafka 4.4 has moved.
import org.apache.kafka.common.utils.*;
import org.apache.kafka.common.utils.internals.*;

/**
 * Decodes bytes as Kafka does, many times in one JVM.
 *
 * Each line of standard input is one case, its fields divided by tabs: "text" and the bytes of a string of UTF-8, or a
 * codec's number, the magic, and a compressed payload; bytes are in hexadecimal, or "-" for none. The file of
 * -Dtarget gets a line for each: the UTF-16 units of the text, or the payload's bytes; "!" and an error's class if Kafka
 * refuses it.
 */
public class Payloads {
    static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws IOException {
        Watchdog.start();
        var answers = new StringJoiner("\n", "", "\n");
        try (var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line; (line = lines.readLine()) != null; ) {
                answers.add(answer(line.split("\t")));
            }
        }
        Files.writeString(Path.of(System.getProperty("target")), answers.toString());
    }

    static String answer(String[] fields) {
        byte[] data = fields[fields.length - 1].equals("-") ? new byte[0] : HEX.parseHex(fields[fields.length - 1]);
        if (fields[0].equals("text")) {
            var text = new String(data, StandardCharsets.UTF_8);
            return text.isEmpty() ? "-" : HEX.formatHex(text.getBytes(StandardCharsets.UTF_16BE));
        }
        var codec = CompressionType.forId(Integer.parseInt(fields[0]));
        try (var stream = Compression.of(codec).build()
                .wrapForInput(ByteBuffer.wrap(data), Byte.parseByte(fields[1]), BufferSupplier.create())) {
            byte[] found = stream.readAllBytes();
            return found.length == 0 ? "-" : HEX.formatHex(found);
        } catch (Throwable e) {
            Throwable cause = e;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return "!" + cause.getClass().getSimpleName() + ": " + String.valueOf(cause.getMessage()).lines().findFirst().orElse("");
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
