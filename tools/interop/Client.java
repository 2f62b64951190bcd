import java.io.IOException;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Talks to the broker at -Dserver: one command a line of standard input, fields divided by tabs.
 *
 *   create  TOPIC CONFIG=VALUE...                      a topic of one partition, or of so many as "partitions=" says
 *   produce TOPIC COUNT CODEC TRANSACTIONS             COUNT records; with TRANSACTIONS > 0 in that many, every second aborted
 *   keyed   TOPIC SECONDS KEYS CODEC                   so long: record i has the key i * 7919 mod KEYS and the value i in its digits,
 *                                                      with i mod 60 letters after it
 *   consume TOPIC ISOLATION PATH                       partition 0 from its beginning, as JSON lines
 *   seek    TOPIC PATH OFFSET...                       the first offset at or behind each, where records are: a line each
 *   time    TOPIC PATH TIMESTAMP...                    the first offset at or after each time, -1 if none; then that of
 *                                                      the latest record of all
 *   committed GROUP PATH                               a line each, sorted: topic, partition, offset, metadata
 *   join    GROUP PROTOCOL TOPIC COUNT PATH            COUNT records as the only member of the group, which are committed then:
 *                                                      a line each: partition, offset, value
 *   pair    GROUP TOPIC COUNT PATH                     COUNT records by a member that is alone, joined by another, and alone
 *                                                      again: how many partitions each has then, a line each time
 *   tool    PATH CLASS ARGUMENT...                     what one of Kafka's command line tools prints
 *
 * The first line of a consumed file has the partition's begin and end offset, then comes a record a line; bytes are
 * base64, or null. Any failure ends the program with a stack trace and status 1; -Dseconds bounds its life.
 */
public class Client {
    static final String SERVER = System.getProperty("server");
    static final Duration PATIENCE = Duration.ofSeconds(60);

    public static void main(String[] args) throws Exception {
        watchdog(Long.getLong("seconds", 120) * 1000);
        var creates = new ArrayList<String[]>();
        var others = new ArrayList<String[]>();
        for (String line : new String(System.in.readAllBytes(), StandardCharsets.UTF_8).split("\n"))
            (line.startsWith("create\t") ? creates : others).add(line.split("\t"));
        if (!creates.isEmpty()) create(creates);
        for (String[] fields : others) {
            switch (fields[0]) {
                case "produce" -> produce(fields[1], Integer.parseInt(fields[2]), fields[3], Integer.parseInt(fields[4]));
                case "keyed" -> keyed(fields[1], Integer.parseInt(fields[2]), Integer.parseInt(fields[3]), fields[4]);
                case "consume" -> consume(fields[1], fields[2], Path.of(fields[3]));
                case "seek" -> seek(fields[1], Path.of(fields[2]), numbers(fields));
                case "time" -> time(fields[1], Path.of(fields[2]), numbers(fields));
                case "committed" -> committed(fields[1], Path.of(fields[2]));
                case "join" -> join(fields[1], fields[2], fields[3], Integer.parseInt(fields[4]), Path.of(fields[5]));
                case "pair" -> pair(fields[1], fields[2], Integer.parseInt(fields[3]), Path.of(fields[4]));
                case "tool" -> tool(Path.of(fields[1]), fields[2], Arrays.copyOfRange(fields, 3, fields.length));
                default -> throw new IllegalArgumentException(fields[0]);
            }
        }
    }

    static void create(List<String[]> lines) throws Exception {
        var topics = new ArrayList<NewTopic>();
        for (String[] fields : lines) {
            var configs = new HashMap<String, String>();
            for (int i = 2; i < fields.length; i++) {
                int equals = fields[i].indexOf('=');
                configs.put(fields[i].substring(0, equals), fields[i].substring(equals + 1));
            }
            int partitions = Integer.parseInt(configs.getOrDefault("partitions", "1"));
            configs.remove("partitions");
            topics.add(new NewTopic(fields[1], partitions, (short) 1).configs(configs));
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", SERVER))) {
            admin.createTopics(topics).all().get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
    }

    static void produce(String topic, int count, String codec, int transactions) throws Exception {
        var config = new HashMap<String, Object>(Map.of("bootstrap.servers", SERVER, "acks", "all", "compression.type", codec,
            "batch.size", "1000", "linger.ms", "5"));
        if (transactions > 0) config.put("transactional.id", topic);
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (transactions > 0) producer.initTransactions();
            for (int round = 0; round < Math.max(1, transactions); round++) {
                if (transactions > 0) producer.beginTransaction();
                for (int i = round; i < count; i += Math.max(1, transactions)) {
                    var record = new ProducerRecord<>(topic, 0, utf8("key-" + i), i % 7 == 6 ? null : utf8("value " + i + " of " + topic));
                    record.headers().add("i", utf8("" + i)).add("none", null);
                    producer.send(record);
                }
                producer.flush();
                if (transactions > 0 && round % 2 == 1) producer.abortTransaction();
                else if (transactions > 0) producer.commitTransaction();
            }
        }
    }

    static void keyed(String topic, int seconds, int keys, String codec) throws Exception {
        // A record that is given up would move all that follow it.
        var config = Map.<String, Object>of("bootstrap.servers", SERVER, "acks", "all", "compression.type", codec, "batch.size", "1000",
            "request.timeout.ms", "" + PATIENCE.toMillis() * 10, "delivery.timeout.ms", "" + Integer.MAX_VALUE, "max.block.ms", "" + Long.MAX_VALUE);
        var failure = new AtomicReference<Exception>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (long i = 0; System.nanoTime() < end; i++) {
                producer.send(new ProducerRecord<>(topic, 0, utf8("" + i * 7919 % keys), utf8(i + "v".repeat((int) (i % 60)))),
                    (metadata, exception) -> failure.compareAndSet(null, exception));
                if (failure.get() != null) throw failure.get();
                if (i % 100 == 99) Thread.sleep(20);
            }
        }
        if (failure.get() != null) throw failure.get();
    }

    static void consume(String topic, String isolation, Path path) throws IOException {
        Map<String, Object> config = Map.of("bootstrap.servers", SERVER, "isolation.level", isolation, "enable.auto.commit", "false",
            "auto.offset.reset", "none", "max.poll.records", "5000", "fetch.max.wait.ms", "20", "check.crcs", "true");
        var partition = new TopicPartition(topic, 0);
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             var out = new PrintWriter(Files.newBufferedWriter(path))) {
            consumer.assign(List.of(partition));
            long begin = consumer.beginningOffsets(List.of(partition), PATIENCE).get(partition);
            long end = consumer.endOffsets(List.of(partition), PATIENCE).get(partition);
            out.println("{\"begin\":" + begin + ",\"end\":" + end + "}");
            consumer.seek(partition, begin);
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (consumer.position(partition, PATIENCE) < end) {
                if (System.nanoTime() > deadline)
                    throw new IOException("stuck at " + consumer.position(partition) + " of " + end + " in " + partition);
                for (var record : consumer.poll(Duration.ofMillis(200))) out.println(json(record));
            }
        }
    }

    static long[] numbers(String[] fields) { return Arrays.stream(fields).skip(3).mapToLong(Long::parseLong).toArray(); }

    static void seek(String topic, Path path, long[] offsets) throws IOException {
        // One batch a fetch: each seek then goes through the broker's offset index.
        Map<String, Object> config = Map.of("bootstrap.servers", SERVER, "enable.auto.commit", "false", "auto.offset.reset", "none",
            "max.poll.records", "1", "max.partition.fetch.bytes", "1", "fetch.max.wait.ms", "20");
        var partition = new TopicPartition(topic, 0);
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             var out = new PrintWriter(Files.newBufferedWriter(path))) {
            consumer.assign(List.of(partition));
            for (long offset : offsets) {
                consumer.seek(partition, offset);
                long deadline = System.nanoTime() + PATIENCE.toNanos();
                for (var found = consumer.poll(Duration.ofMillis(200)); ; found = consumer.poll(Duration.ofMillis(200))) {
                    if (System.nanoTime() > deadline) throw new IOException("nothing at " + offset + " of " + partition);
                    if (found.isEmpty()) continue;
                    out.println(found.iterator().next().offset());
                    break;
                }
            }
        }
    }

    static void time(String topic, Path path, long[] timestamps) throws Exception {
        var partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", SERVER)); var out = new PrintWriter(Files.newBufferedWriter(path))) {
            var specs = new ArrayList<OffsetSpec>();
            for (long timestamp : timestamps) specs.add(OffsetSpec.forTimestamp(timestamp));
            specs.add(OffsetSpec.maxTimestamp());
            for (OffsetSpec spec : specs)
                out.println(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get(PATIENCE.toSeconds(), TimeUnit.SECONDS).offset());
        }
    }

    static void committed(String group, Path path) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", SERVER)); var out = new PrintWriter(Files.newBufferedWriter(path))) {
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(PATIENCE.toSeconds(), TimeUnit.SECONDS)
                .entrySet().stream()
                .map(entry -> entry.getKey().topic() + "\t" + entry.getKey().partition() + "\t" + entry.getValue().offset() + "\t" + entry.getValue().metadata())
                .sorted().forEach(out::println);
        }
    }

    static void join(String group, String protocol, String topic, int count, Path path) throws IOException {
        Map<String, Object> config = Map.of("bootstrap.servers", SERVER, "group.id", group, "group.protocol", protocol, "enable.auto.commit", "false",
            "auto.offset.reset", "none", "max.partition.fetch.bytes", "1", "fetch.max.wait.ms", "20");
        var next = new HashMap<TopicPartition, OffsetAndMetadata>();
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             var out = new PrintWriter(Files.newBufferedWriter(path))) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            for (int left = count; left > 0; ) {
                if (System.nanoTime() > deadline) throw new IOException("of " + count + " records " + left + " did not come");
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    if (left-- <= 0) break;
                    out.println(record.partition() + "\t" + record.offset() + "\t" + new String(record.value(), StandardCharsets.UTF_8));
                    next.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1, "by Kafka"));
                }
            }
            consumer.commitSync(next, PATIENCE);
        }
    }

    static void pair(String group, String topic, int count, Path path) throws IOException {
        Map<String, Object> config = Map.of("bootstrap.servers", SERVER, "group.id", group, "group.protocol", "classic",
            "auto.offset.reset", "earliest", "heartbeat.interval.ms", "200", "fetch.max.wait.ms", "20");
        var read = new HashSet<String>();
        try (var first = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             var out = new PrintWriter(Files.newBufferedWriter(path))) {
            int partitions = first.partitionsFor(topic, PATIENCE).size();
            first.subscribe(List.of(topic));
            poll(List.of(first), read, () -> first.assignment().size() == partitions);
            out.println("alone: " + first.assignment().size());
            try (var second = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                second.subscribe(List.of(topic));
                poll(List.of(first, second), read, () -> !second.assignment().isEmpty()
                    && first.assignment().size() + second.assignment().size() == partitions);
                int one = first.assignment().size(), other = second.assignment().size();
                out.println("together: " + Math.max(one, other) + " and " + Math.min(one, other));
            }
            poll(List.of(first), read, () -> first.assignment().size() == partitions && read.size() >= count);
            out.println("alone again: " + first.assignment().size());
            out.println("records: " + read.size());
        }
    }

    /** Polls one consumer after the other until it is over, and notes the keys of the records. */
    static void poll(List<KafkaConsumer<byte[], byte[]>> members, Set<String> read, BooleanSupplier isOver) throws IOException {
        for (long deadline = System.nanoTime() + PATIENCE.toNanos(); !isOver.getAsBoolean(); ) {
            if (System.nanoTime() > deadline) throw new IOException("the group did not settle");
            for (var member : members)
                for (var record : member.poll(Duration.ofMillis(100))) read.add(new String(record.key(), StandardCharsets.UTF_8));
        }
    }

    static Integer ended;

    static void tool(Path path, String name, String[] arguments) throws Exception {
        var all = new ArrayList<>(List.of("--bootstrap-server", SERVER));
        all.addAll(List.of(arguments));
        PrintStream before = System.out;
        try (var out = new PrintStream(path.toFile(), StandardCharsets.UTF_8)) {
            System.setOut(out);
            // Some tools would end the process: with the first status, as those that catch everything end it again.
            ended = null;
            Exit.setExitProcedure((status, message) -> {
                if (ended == null) ended = status;
                throw new IllegalStateException("the end of the tool");
            });
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) all.toArray(new String[0]));
        } catch (InvocationTargetException error) {
            if (ended == null) throw error;
            if (ended != 0) throw new IOException(name + " ended with status " + ended + ": " + Files.readString(path));
        } finally {
            Exit.resetExitProcedure();
            System.setOut(before);
        }
    }

    static String json(ConsumerRecord<byte[], byte[]> record) {
        var headers = new ArrayList<String>();
        for (Header header : record.headers()) headers.add("[" + base64(utf8(header.key())) + "," + base64(header.value()) + "]");
        return "{\"offset\":" + record.offset() + ",\"timestamp\":" + record.timestamp() + ",\"timestamp_type\":\"" + record.timestampType()
            + "\",\"epoch\":" + record.leaderEpoch().map(String::valueOf).orElse("null") + ",\"key\":" + base64(record.key()) + ",\"value\":" + base64(record.value())
            + ",\"headers\":[" + String.join(",", headers) + "]}";
    }

    static byte[] utf8(String text) { return text.getBytes(StandardCharsets.UTF_8); }

    static String base64(byte[] bytes) { return bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\""; }

    static void watchdog(long ms) {
        var thread = new Thread(() -> {
            try {
                Thread.sleep(ms);
            } catch (InterruptedException e) {
                return;
            }
            Runtime.getRuntime().halt(124);
        });
        thread.setDaemon(true);
        thread.start();
    }
}
