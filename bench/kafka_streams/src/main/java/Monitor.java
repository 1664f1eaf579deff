import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The job in Kafka Streams: `Monitor VECTORS GUARANTEE TASK`; with the vectors alone it only verifies itself.
 * With `functions` for the guarantee, a ceiling: the port alone over records in memory, without Kafka Streams.
 *
 * It verifies itself against the vectors, passes over the input some times to warm the compiler up, under application ids of
 * their own, and then does the job. Marks are those of bench/jobs/marks.py.
 */
public final class Monitor {
    private static final String STORE = "sessions";
    private static final String FUNCTIONS = "functions";
    private static final int WARM_UP_PASSES = 9;

    private final JsonNode task;
    private final String guarantee;
    private final Findings texts;
    private final Map<String, Long> counts = new HashMap<>();

    private Monitor(JsonNode task, String guarantee, Findings texts) {
        this.task = task;
        this.guarantee = guarantee;
        this.texts = texts;
    }

    public static void main(String[] arguments) throws Exception {
        Findings texts = Vectors.verified(Path.of(arguments[0]));
        if (arguments.length == 1) return;
        Monitor monitor = new Monitor(new ObjectMapper().readTree(arguments[2]), arguments[1], texts);
        if (arguments[1].equals(FUNCTIONS)) {
            monitor.functions();
        } else {
            for (int pass = 1; pass <= WARM_UP_PASSES; pass++) monitor.run("-warm-" + pass, false);
            monitor.run("", true);
        }
        new CountDownLatch(1).await();
    }

    /** At first for the compiler, and each time over new records: their headers are decoded once and kept. */
    private void functions() {
        for (int pass = 1; pass <= WARM_UP_PASSES + 1; pass++) {
            List<ConsumerRecord<byte[], byte[]>> records = read();
            Map<String, State> sessions = new HashMap<>();
            if (pass > WARM_UP_PASSES) mark("started");
            for (ConsumerRecord<byte[], byte[]> record : records) {
                Contract.Event event = decoded(record.key(), record.value(), record.headers());
                if (event == null) continue;
                Fold fold = new Fold(texts, counts);
                fold.apply(sessions.get(event.sessionId), event, record.timestamp());
                sessions.put(event.sessionId, fold.session);
            }
        }
        mark("handled");
        mark("committed");
    }

    private List<ConsumerRecord<byte[], byte[]>> read() {
        var bytes = new ByteArrayDeserializer();
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        Map<String, Object> settings = Map.of("bootstrap.servers", task.get("broker").asText());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int number = 0; number < task.get("partitions").asInt(); number++) {
                partitions.add(new TopicPartition(task.get("topic").asText(), number));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (records.size() < task.get("records").asInt()) consumer.poll(Duration.ofMillis(100)).forEach(records::add);
        }
        return records;
    }

    /** The record's event, or null where it is refused. */
    private Contract.Event decoded(byte[] key, byte[] value, Headers headers) {
        try {
            return Contract.decode(key, value, headers);
        } catch (Contract.Refused refused) {
            counts.merge(refused.getMessage(), 1L, Long::sum);
            return null;
        }
    }

    private void run(String suffix, boolean measured) throws Exception {
        String findings = task.get("findings").asText() + suffix;
        if (!measured) create(findings);
        CountDownLatch handled = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology(findings, measured, handled), settings(suffix));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
        handled.await();
        if (!measured) streams.close(Duration.ofSeconds(30));
    }

    private void create(String topic) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", task.get("broker").asText()))) {
            admin.createTopics(List.of(new NewTopic(topic, task.get("partitions").asInt(), (short) 1))).all().get();
        }
    }

    private Properties settings(String suffix) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, task.get("app").asText() + suffix);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, task.get("broker").asText());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, task.get("folder").asText());
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        // Exactly once commits every 100 ms by itself; at least once every 30 s, and everyone here at least once a second.
        if (guarantee.equals(StreamsConfig.AT_LEAST_ONCE)) settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1_000);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return settings;
    }

    private Topology topology(String findings, boolean measured, CountDownLatch handled) {
        var bytes = Serdes.ByteArray();
        return new Topology()
                .addSource("inputs", bytes.deserializer(), bytes.deserializer(), task.get("topic").asText())
                .addProcessor("fold", () -> new Rounds(measured, handled), "inputs")
                // With the record cache, as the DSL's stores have it: what is written twice between two commits is stored once.
                .addStateStore(
                        Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), bytes, bytes).withCachingEnabled(),
                        "fold")
                .addSink("findings", findings, bytes.serializer(), bytes.serializer(), "fold");
    }

    private static final java.util.concurrent.atomic.AtomicLong SEEN = new java.util.concurrent.atomic.AtomicLong();

    private static synchronized void mark(String name) {
        System.out.println(name + " " + System.nanoTime());
        System.out.flush();
    }

    /** Validate, fold, store, publish. One for each partition, all in one thread. */
    private final class Rounds implements Processor<byte[], byte[], byte[], byte[]> {
        private final boolean measured;
        private final CountDownLatch handled;
        private final long records = task.get("records").asLong();
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<byte[], byte[]> sessions;

        private Rounds(boolean measured, CountDownLatch handled) {
            this.measured = measured;
            this.handled = handled;
        }

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            sessions = given.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            long seen = SEEN.getAndIncrement();
            if (measured && seen == 0) mark("started");
            Contract.Event event = decoded(record.key(), record.value(), record.headers());
            if (event != null) {
                byte[] row = sessions.get(record.key());
                Fold fold = new Fold(texts, counts);
                fold.apply(row == null ? null : State.fromBytes(row), event, record.timestamp());
                sessions.put(record.key(), fold.session.toBytes());
                for (Findings.Finding finding : fold.findings) {
                    context.forward(new Record<>(finding.key(), finding.value(), record.timestamp(), finding.headers()));
                }
            }
            if (seen + 1 == records) {
                context.commit();
                SEEN.set(0);
                if (measured) mark("handled");
                handled.countDown();
            }
        }
    }
}
