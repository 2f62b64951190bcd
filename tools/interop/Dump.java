import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.kafka.tools.DumpLogSegments;

/**
 * Runs Kafka's DumpLogSegments many times in one JVM.
 *
 * Each line of standard input is one run, its fields divided by tabs: the path to write to, then the tool's arguments.
 * What the run prints goes to PATH.out and PATH.err; an exception of the tool goes to PATH.threw.
 */
public class Dump {
    public static void main(String[] args) throws IOException {
        Watchdog.start();
        try (var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] fields = line.split("\t");
                run(fields[0], Arrays.copyOfRange(fields, 1, fields.length));
            }
        }
    }

    static void run(String target, String[] arguments) throws IOException {
        var out = new ByteArrayOutputStream();
        var err = new ByteArrayOutputStream();
        PrintStream stdout = System.out, stderr = System.err;
        System.setOut(new PrintStream(out, false, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, false, StandardCharsets.UTF_8));
        try {
            DumpLogSegments.main(arguments);
        } catch (Throwable e) {
            Files.writeString(Path.of(target + ".threw"), e.toString());
        } finally {
            System.out.flush();
            System.err.flush();
            System.setOut(stdout);
            System.setErr(stderr);
        }
        Files.write(Path.of(target + ".out"), out.toByteArray());
        Files.write(Path.of(target + ".err"), err.toByteArray());
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
