import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The Java counterpart of tests/groups/worker.py, with the same output: a consumer that is killed, or leaves at SIGTERM. */
public class Member {
    private static volatile boolean ended;

    public static void main(String[] arguments) throws Exception {
        JsonNode o = new ObjectMapper().readTree(arguments[1]);
        CountDownLatch left = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ended = true;
            try {
                left.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        try (var consumer = new KafkaConsumer<String, String>(config(arguments[0], o))) {
            consumer.subscribe(List.of(o.get("topic").asText()));
            work(consumer, o);
        } catch (KafkaException e) {
            say("failed " + e.getClass().getSimpleName() + " " + e.getMessage());
        } finally {
            say("left");
            left.countDown();
        }
    }

    private static Properties config(String bootstrap, JsonNode o) {
        String assignors = "org.apache.kafka.clients.consumer.";
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", o.get("group").asText());
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("reconnect.backoff.max.ms", "200");
        config.put("key.deserializer", StringDeserializer.class.getName());
        config.put("value.deserializer", StringDeserializer.class.getName());
        if (!o.get("instance").isNull()) {
            config.put("group.instance.id", o.get("instance").asText());
        }
        if (!o.get("protocol").isNull()) {
            config.put("group.protocol", o.get("protocol").asText());
            return config; // with the newer one the broker decides on the rest
        }
        config.put("session.timeout.ms", o.get("session_ms").asText());
        config.put("heartbeat.interval.ms", "300");
        config.put("partition.assignment.strategy",
                assignors + (o.get("cooperative").asBoolean() ? "CooperativeStickyAssignor" : "RangeAssignor"));
        return config;
    }

    private static void work(KafkaConsumer<String, String> consumer, JsonNode o) {
        int limit = o.get("limit").isNull() ? -1 : o.get("limit").asInt();
        TreeSet<Integer> held = new TreeSet<>();
        TreeMap<Integer, Long> ends = new TreeMap<>();
        List<ConsumerRecord<String, String>> came = new ArrayList<>(); // during a wait for an answer
        while (!ended && limit != 0) {
            List<ConsumerRecord<String, String>> records = new ArrayList<>(came);
            came.clear();
            consumer.poll(Duration.ofMillis(50)).forEach(records::add);
            if (limit >= 0 && records.size() > limit) {
                records = records.subList(0, limit);
            }
            limit -= limit < 0 ? 0 : records.size();
            TreeSet<Integer> now = new TreeSet<>();
            consumer.assignment().forEach(tp -> now.add(tp.partition()));
            if (!now.equals(held)) {
                held = now;
                StringBuilder line = new StringBuilder("assigned");
                now.forEach(partition -> line.append(' ').append(partition));
                say(line.toString());
            }
            for (var record : records) {
                say("read " + record.partition() + ":" + record.value());
                ends.put(record.partition(), record.offset() + 1);
            }
            ends.entrySet().removeIf(end -> keep(consumer, o, end.getKey(), end.getValue(), came));
        }
    }

    /**
     * Commit; return true if the commit succeeded or is not needed. After a failure, by a rebalance or a dead broker, the
     * records are read again by another member, or this member commits them the next time.
     */
    private static boolean keep(KafkaConsumer<String, String> consumer, JsonNode o, int partition, long offset,
            List<ConsumerRecord<String, String>> came) {
        var tp = new TopicPartition(o.get("topic").asText(), partition);
        var offsets = Map.of(tp, new OffsetAndMetadata(offset));
        try {
            if (!consumer.assignment().contains(tp) || consumer.position(tp) < offset) {
                return true;
            }
            if (o.get("commit").asText().equals("sync")) {
                consumer.commitSync(offsets);
            } else {
                List<Exception> answers = new ArrayList<>();
                consumer.commitAsync(offsets, (committed, error) -> answers.add(error));
                consumer.pause(consumer.assignment());
                while (answers.isEmpty()) {
                    consumer.poll(Duration.ofMillis(50)).forEach(came::add);
                }
                consumer.resume(consumer.assignment());
                if (answers.get(0) != null) {
                    return false;
                }
            }
            say("kept " + partition + ":" + offset);
            return true;
        } catch (KafkaException e) {
            System.err.println("not committed: " + e);
            return false;
        }
    }

    private static void say(String line) {
        System.out.println(line);
    }
}
