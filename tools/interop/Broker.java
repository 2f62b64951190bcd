import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Formats a store if it is new, then runs one Kafka broker (KRaft) in it until standard input ends or a byte is read.
 *
 * usage: Broker.java PROPERTIES CLUSTER_ID META_DIRECTORY
 *
 * The parent holds the other end of standard input, so the broker cannot outlive it; -Dseconds also bounds its life.
 */
public class Broker {
    /** How long a clean stop may take before the JVM is halted. */
    static final long STOP_MS = 30_000;

    public static void main(String[] args) throws IOException {
        String properties = args[0], cluster = args[1];
        after(Long.getLong("seconds", 300) * 1000, () -> Runtime.getRuntime().halt(124));
        if (!Files.exists(Path.of(args[2], "meta.properties"))) {
            int status = kafka.tools.StorageTool.execute(new String[] {"format", "-t", cluster, "-c", properties}, System.out);
            if (status != 0) Runtime.getRuntime().halt(status);
        }
        daemon(() -> {
            try {
                System.in.read();
            } catch (IOException e) {
                // Like the end of the stream: the parent is gone.
            }
            after(STOP_MS, () -> Runtime.getRuntime().halt(125));
            System.exit(0); // Kafka's shutdown hook stops the broker cleanly.
        });
        kafka.Kafka.main(new String[] {properties});
    }

    static void after(long ms, Runnable action) {
        daemon(() -> {
            try {
                Thread.sleep(ms);
            } catch (InterruptedException e) {
                return;
            }
            action.run();
        });
    }

    static void daemon(Runnable action) {
        var thread = new Thread(action);
        thread.setDaemon(true);
        thread.start();
    }
}
