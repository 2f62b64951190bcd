import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Lets the coordinators of the broker at -Dserver write records of each kind: classic and new consumer groups, one that
 * changes from one protocol to the other with a member of each, a share group, transactions with offsets, deletions.
 */
public class Groups {
    static final Map<String, Object> SERVER = Map.of("bootstrap.servers", System.getProperty("server"));

    public static void main(String[] args) throws Exception {
        try (Admin admin = Admin.create(SERVER)) {
            admin.createTopics(List.of(new NewTopic("orders", 3, (short) 1))).all().get(60, TimeUnit.SECONDS);
            share();
            produce(10);
            try (var classic = consumer("classic", "classic", Map.of("client.id", "größe"));
                 var young = consumer("new", "consumer", Map.of("group.instance.id", "static-1", "client.rack", "r1"));
                 var other = consumer("new", "consumer", Map.of());
                 var old = consumer("mixed", "classic", Map.of())) {
                poll(classic, young, other, old);
                try (var upgraded = consumer("mixed", "consumer", Map.of())) {
                    poll(old, upgraded, classic, young, other, old, upgraded, old, upgraded);
                }
                classic.commitSync(Map.of(new TopicPartition("orders", 0), new OffsetAndMetadata(3, "by \"classic\"")));
                young.commitSync(Map.of(new TopicPartition("orders", 1), new OffsetAndMetadata(2, "")));
                transactions(classic);
            }
            try (var gone = consumer("gone", "classic", Map.of())) {
                poll(gone);
                gone.commitSync();
            }
            admin.deleteConsumerGroups(List.of("gone")).all().get(60, TimeUnit.SECONDS);
        }
    }

    static void produce(int count) {
        try (var producer = new KafkaProducer<>(SERVER, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < count; i++) producer.send(new ProducerRecord<>("orders", i % 3, null, new byte[] {(byte) i}));
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, String protocol, Map<String, Object> more) {
        var config = new HashMap<>(SERVER);
        config.putAll(Map.of("group.id", group, "group.protocol", protocol, "enable.auto.commit", "false", "auto.offset.reset", "earliest"));
        config.putAll(more);
        var made = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        made.subscribe(List.of("orders"));
        return made;
    }

    @SafeVarargs
    static void poll(KafkaConsumer<byte[], byte[]>... consumers) {
        for (int round = 0; round < 6; round++) for (var consumer : consumers) consumer.poll(Duration.ofMillis(150));
    }

    static void transactions(KafkaConsumer<byte[], byte[]> consumer) {
        var config = new HashMap<>(SERVER);
        config.put("transactional.id", "copy");
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (boolean commit : new boolean[] {true, false}) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>("orders", 2, null, new byte[1]));
                producer.sendOffsetsToTransaction(Map.of(new TopicPartition("orders", 2), new OffsetAndMetadata(commit ? 1 : 2)), consumer.groupMetadata());
                if (commit) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
    }

    /** Its first poll initializes the share partitions; what comes then is acknowledged. */
    static void share() throws Exception {
        var config = new HashMap<>(SERVER);
        config.put("group.id", "shared");
        try (var consumer = new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of("orders"));
            for (int round = 0; round < 20; round++) consumer.poll(Duration.ofMillis(150));
            produce(7);
            for (int round = 0; round < 20; round++) consumer.poll(Duration.ofMillis(150));
            consumer.commitSync();
        }
    }
}
