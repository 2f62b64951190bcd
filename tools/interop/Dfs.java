import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * Runs a small HDFS on loopback, on free ports, until standard input ends or a byte is read.
 *
 * usage: Dfs.java FOLDER
 *
 * Prints "ready HDFS_URL HTTP_URL" once files can be written. The parent holds the other end of standard input, so the
 * cluster cannot outlive it; -Dseconds bounds its life besides.
 */
public class Dfs {
    static final int DATA_NODES = 2;
    /** How long an orderly stop may take before the JVM is halted. */
    static final long STOP_MS = 20_000;

    public static void main(String[] args) throws IOException {
        after(Long.getLong("seconds", 300) * 1000, 124);
        // Some of Hadoop's test classes put files there instead of where the configuration says.
        System.setProperty("test.build.data", args[0]);
        Configuration conf = new Configuration();
        conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[0]);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(DATA_NODES).build();
        cluster.waitActive();
        System.out.println("ready " + cluster.getURI() + " " + cluster.getHttpUri(0));
        System.out.flush();
        try {
            System.in.read();
        } catch (IOException e) {
            // As good as the end of the stream: the parent is gone.
        }
        after(STOP_MS, 125);
        cluster.shutdown();
        System.exit(0);
    }

    static void after(long ms, int status) {
        var thread = new Thread(() -> {
            try {
                Thread.sleep(ms);
            } catch (InterruptedException e) {
                return;
            }
            Runtime.getRuntime().halt(status);
        });
        thread.setDaemon(true);
        thread.start();
    }
}
