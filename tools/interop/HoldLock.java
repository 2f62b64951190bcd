import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Tries a file's lock as a broker does, prints the result, and keeps it until a line on standard input. */
public final class HoldLock {
    public static void main(String[] arguments) throws IOException {
        Path path = Path.of(arguments[0]);
        for (int command = '\n'; command == '\n'; ) {
            try (FileChannel channel = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.READ,
                    StandardOpenOption.WRITE)) {
                FileLock lock = channel.tryLock();
                System.out.println(lock == null ? "refused" : "locked");
                command = System.in.read();
            }
            System.out.println("released");
        }
    }
}
