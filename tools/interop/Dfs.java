import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.DatanodeID;

/**
 * Runs a small HDFS on loopback, on free ports, until standard input ends.
 *
 * usage: Dfs.java FOLDER
 *
 * Prints "ready HDFS_URL HTTP_URL" once files can be written. Then each line of standard input is a command, and "done" is
 * printed after it:
 *
 *   kill N     data node N ends at once, with its connections; the name node does not notice that for minutes
 *   notice     the name node knows now that it is dead
 *   start      the killed data node runs again, on its port; it is the last one now
 *
 * The parent holds the other end of standard input, so the cluster cannot outlive it; -Dseconds bounds its life besides.
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
        MiniDFSCluster.DataNodeProperties killed = null;
        DatanodeID id = null;
        try {
            var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line; (line = in.readLine()) != null; ) {
                if (line.startsWith("kill ")) {
                    int number = Integer.parseInt(line.substring(5));
                    id = cluster.getDataNodes().get(number).getDatanodeId();
                    killed = cluster.stopDataNode(number);
                } else if (line.equals("notice")) {
                    cluster.setDataNodeDead(id);
                } else {
                    cluster.restartDataNode(killed, true);
                    cluster.waitActive();
                }
                System.out.println("done");
                System.out.flush();
            }
        } catch (IOException e) {
            // As good as the end of the stream: the parent is gone.
            e.printStackTrace();
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
