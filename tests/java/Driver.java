import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RenewDelegationTokenOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.security.token.delegation.DelegationToken;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own Java clients, driven by JSON lines: a command a line on stdin, an answer a line on stdout.
 *
 * <p>{"id": 7, "handle": "p1", "op": "send", ...} is answered by {"id": 7, "result": ...} or {"id": 7, "code": 10,
 * "message": "..."} with Kafka's error code. Commands to one handle run in their order, handles run side by side; a
 * send is answered when it is acknowledged. Keys and values are base64.
 */
public class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;
    private static final Map<String, Handle> HANDLES = new ConcurrentHashMap<>();

    /** The target of a command: a producer, a consumer or an admin client, with its thread. */
    private static final class Handle {
        final ExecutorService thread = Executors.newSingleThreadExecutor();
        AutoCloseable client;

        @SuppressWarnings("unchecked")
        <T> T as() {
            return (T) client;
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // stdout is for answers only
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode command = JSON.readTree(line);
            Handle handle = HANDLES.computeIfAbsent(command.get("handle").asText(), name -> new Handle());
            handle.thread.execute(() -> run(handle, command));
        }
        System.exit(0);
    }

    private static void run(Handle handle, JsonNode command) {
        try {
            if (command.get("op").asText().equals("send")) {
                send(handle.as(), command);
            } else {
                answer(command, perform(handle, command));
            }
        } catch (Throwable e) {
            fail(command, e);
        }
    }

    private static JsonNode perform(Handle handle, JsonNode c) throws Exception {
        switch (c.get("op").asText()) {
            case "open_producer":
                handle.client = new KafkaProducer<>(config(c), new ByteArraySerializer(), new ByteArraySerializer());
                return null;
            case "open_consumer":
                handle.client = consumer(c);
                return null;
            case "open_admin":
                handle.client = Admin.create(config(c));
                return null;
            case "init_transactions":
                handle.<KafkaProducer<byte[], byte[]>>as().initTransactions();
                return null;
            case "begin_transaction":
                handle.<KafkaProducer<byte[], byte[]>>as().beginTransaction();
                return null;
            case "commit_transaction":
                handle.<KafkaProducer<byte[], byte[]>>as().commitTransaction();
                return null;
            case "abort_transaction":
                handle.<KafkaProducer<byte[], byte[]>>as().abortTransaction();
                return null;
            case "flush":
                handle.<KafkaProducer<byte[], byte[]>>as().flush();
                return null;
            case "poll":
                return poll(handle.as(), c);
            case "close":
                close(handle, c);
                return null;
            default:
                return administer(handle.as(), c);
        }
    }

    private static void close(Handle handle, JsonNode c) throws Exception {
        HANDLES.remove(c.get("handle").asText());
        if (handle.client instanceof KafkaProducer<?, ?> producer) {
            producer.close(Duration.ofMillis(c.get("timeout_ms").asLong()));
        } else if (handle.client != null) {
            handle.client.close();
        }
        handle.thread.shutdown();
    }

    // -- records --------------------------------------------------------------------------------------------------

    private static void send(KafkaProducer<byte[], byte[]> producer, JsonNode c) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : c.get("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
        }
        Long timestamp = c.get("timestamp_ms").isNull() ? null : c.get("timestamp_ms").asLong();
        String topic = c.get("topic").asText();
        int partition = c.get("partition").asInt();
        producer.send(
                new ProducerRecord<>(topic, partition, timestamp, bytes(c.get("key")), bytes(c.get("value")), headers),
                (metadata, error) -> {
                    if (error != null) {
                        fail(c, error);
                    } else {
                        answer(c, JSON.getNodeFactory().numberNode(metadata.hasOffset() ? metadata.offset() : -1));
                    }
                });
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode c) {
        var consumer = new KafkaConsumer<>(config(c), new ByteArrayDeserializer(), new ByteArrayDeserializer());
        Map<TopicPartition, Long> positions = new HashMap<>();
        c.get("positions").fields().forEachRemaining(e -> positions.put(
                new TopicPartition(c.get("topic").asText(), Integer.parseInt(e.getKey())), e.getValue().asLong()));
        consumer.assign(positions.keySet());
        positions.forEach(consumer::seek);
        return consumer;
    }

    private static JsonNode poll(KafkaConsumer<byte[], byte[]> consumer, JsonNode c) {
        ArrayNode records = JSON.createArrayNode();
        for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(c.get("timeout_ms").asLong()))) {
            ArrayNode headers = JSON.createArrayNode();
            for (Header header : r.headers()) {
                headers.addArray().add(header.key()).add(text(header.value()));
            }
            records.addArray().add(text(r.value())).add(text(r.key())).add(headers).add(r.timestamp())
                    .add(r.partition()).add(r.offset());
        }
        return records;
    }

    // -- admin ----------------------------------------------------------------------------------------------------

    private static JsonNode administer(Admin admin, JsonNode c) throws Exception {
        ObjectNode result = JSON.createObjectNode();
        String topic = c.path("topic").asText();
        TopicPartition partition = new TopicPartition(topic, c.path("partition").asInt());
        switch (c.get("op").asText()) {
            case "create_topic": {
                short replicas = (short) c.get("replication_factor").asInt();
                NewTopic created = new NewTopic(topic, c.get("partitions").asInt(), replicas);
                wait(admin.createTopics(List.of(created.configs(strings(c.get("config"))))).all());
                return null;
            }
            case "delete_topic":
                wait(admin.deleteTopics(List.of(topic)).all());
                return null;
            case "create_partitions": {
                NewPartitions grown = NewPartitions.increaseTo(c.get("total").asInt());
                wait(admin.createPartitions(Map.of(topic, grown)).all());
                return null;
            }
            case "delete_records": {
                RecordsToDelete before = RecordsToDelete.beforeOffset(c.get("before").asLong());
                return result.put(
                        "low",
                        wait(admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition)).lowWatermark());
            }
            case "topics": {
                Collection<String> names = wait(admin.listTopics().names());
                for (TopicDescription t : wait(admin.describeTopics(names).allTopicNames()).values()) {
                    ArrayNode partitions = result.putArray(t.name());
                    t.partitions().stream().map(TopicPartitionInfo::partition).forEach(partitions::add);
                }
                return result;
            }
            case "list_offset": {
                OffsetSpec spec = spec(c.get("at").asLong());
                return result.put("offset", wait(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition)).offset());
            }
            case "config": {
                ConfigResource.Type type = ConfigResource.Type.valueOf(c.get("type").asText());
                ConfigResource resource = new ConfigResource(type, c.get("name").asText());
                for (ConfigEntry entry : wait(admin.describeConfigs(List.of(resource)).values().get(resource)).entries()) {
                    result.put(entry.name(), entry.value());
                }
                return result;
            }
            case "create_token":
                return token(wait(admin.createDelegationToken().delegationToken()));
            case "tokens": {
                for (DelegationToken found : wait(admin.describeDelegationToken().delegationTokens())) {
                    result.set(found.tokenInfo().tokenId(), token(found));
                }
                return result;
            }
            case "renew_token": {
                RenewDelegationTokenOptions by = new RenewDelegationTokenOptions().renewTimePeriodMs(c.get("ms").asLong());
                return result.put("until_ms", wait(admin.renewDelegationToken(bytes(c.get("hmac")), by).expiryTimestamp()));
            }
            case "expire_token":
                wait(admin.expireDelegationToken(bytes(c.get("hmac"))).expiryTimestamp());
                return null;
            case "cluster": {
                DescribeClusterResult cluster = admin.describeCluster();
                result.put("id", wait(cluster.clusterId())).put("controller", wait(cluster.controller()).id());
                for (Node node : wait(cluster.nodes())) {
                    result.withObject("/nodes").putArray(node.idString()).add(node.host()).add(node.port());
                }
                return result;
            }
            default:
                throw new IllegalArgumentException(c.get("op").asText());
        }
    }

    private static ObjectNode token(DelegationToken token) {
        return JSON.createObjectNode()
                .put("id", token.tokenInfo().tokenId())
                .put("hmac", token.hmacAsBase64String())
                .put("owner", token.tokenInfo().ownerAsString())
                .put("until_ms", token.tokenInfo().expiryTimestamp());
    }

    private static OffsetSpec spec(long at) {
        if (at == -1) {
            return OffsetSpec.latest();
        }
        if (at == -2) {
            return OffsetSpec.earliest();
        }
        return at == -3 ? OffsetSpec.maxTimestamp() : OffsetSpec.forTimestamp(at);
    }

    private static <T> T wait(KafkaFuture<T> future) throws Exception {
        return future.get();
    }

    // -- JSON -----------------------------------------------------------------------------------------------------

    private static Map<String, Object> config(JsonNode command) {
        return new HashMap<>(strings(command.get("config")));
    }

    private static Map<String, String> strings(JsonNode object) {
        Map<String, String> strings = new HashMap<>();
        object.fields().forEachRemaining(e -> strings.put(e.getKey(), e.getValue().asText()));
        return strings;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static void answer(JsonNode command, JsonNode result) {
        ObjectNode answer = JSON.createObjectNode().put("id", command.get("id").asLong());
        answer.set("result", Optional.ofNullable(result).orElse(JSON.nullNode()));
        write(answer);
    }

    private static void fail(JsonNode command, Throwable error) {
        Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
        short code = cause instanceof OffsetOutOfRangeException
                ? Errors.OFFSET_OUT_OF_RANGE.code()
                : Errors.forException(cause).code();
        write(JSON.createObjectNode().put("id", command.get("id").asLong()).put("code", code)
                .put("message", cause.toString()));
    }

    private static void write(ObjectNode answer) {
        synchronized (OUT) {
            OUT.println(answer);
        }
    }
}
