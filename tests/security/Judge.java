import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import kafka.security.authorizer.AclAuthorizer;
import kafka.zk.ExtendedAclChangeStore$;
import kafka.zk.LiteralAclChangeStore$;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.security.authorizer.AclEntry;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;
import org.apache.zookeeper.common.PathUtils;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Kafka's own AclAuthorizer, driven by JSON lines: a command a line on stdin, an answer a line on stdout. Its ZooKeeper is
 * in the same process; the first output line has its port. Enums are their numbers on the wire. An ACL is
 * [type, name, pattern, principal, host, operation, permission], and a filter the same with nulls. The process has several
 * authorizers, each with its own root, super users and allow.everyone.if.no.acl.found.
 */
public class Judge {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, AclAuthorizer> AUTHORIZERS = new HashMap<>();
    private static int port;

    public static void main(String[] arguments) throws Exception {
        System.setOut(new PrintStream(System.out, true, StandardCharsets.UTF_8));
        NIOServerCnxnFactory connections = new NIOServerCnxnFactory();
        connections.configure(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 100);
        File data = new File(arguments[0]);
        connections.startup(new ZooKeeperServer(data, data, 1000));
        port = connections.getLocalPort();
        System.out.println(port);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
        System.exit(0);
    }

    private static JsonNode answer(JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "judge": return judge(command);
            case "ask": return ask(authorizer(command), command.get("questions"));
            case "acls": return acls(authorizer(command), command.get("filter"));
            case "create": return create(authorizer(command), command.get("acls"));
            case "delete": return delete(authorizer(command), command.get("filters"));
            case "host": return JSON.valueToTree(InetAddress.getByName(command.get("address").asText()).getHostAddress());
            case "supported": return JSON.valueToTree(supported(ResourceType.fromCode((byte) command.get("type").asInt())));
            case "read": return read(command.get("what").asText(), command.get("data").binaryValue());
            case "node": return JSON.valueToTree(isNode(command.get("name").asText()));
            case "starts": return JSON.valueToTree(starts(command));
            default: throw new IllegalArgumentException(command.toString());
        }
    }

    /** The authorizer with these settings; the first call creates it, and it loads the ACLs below its root. */
    private static AclAuthorizer authorizer(JsonNode command) {
        String root = command.get("root").asText();
        String supers = command.get("super_users").asText();
        String everyone = command.get("allow_everyone").asText();
        return AUTHORIZERS.computeIfAbsent(root + " " + supers + " " + everyone, key -> {
            AclAuthorizer made = new AclAuthorizer();
            made.configure(Map.of("zookeeper.connect", "127.0.0.1:" + port + root, "super.users", supers,
                "allow.everyone.if.no.acl.found", everyone, "zookeeper.session.timeout.ms", "60000"));
            return made;
        });
    }

    /** True if an authorizer starts with these settings. */
    private static boolean starts(JsonNode command) {
        try {
            authorizer(command);
            return true;
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    /** The answers to questions and filters under these ACLs, given as their nodes' bytes, and removed afterwards. */
    private static JsonNode judge(JsonNode command) throws Exception {
        AclAuthorizer authorizer = authorizer(command);
        List<ResourcePattern> put = new ArrayList<>();
        for (JsonNode node : command.get("nodes")) {
            ResourcePattern resource = resource(node);
            Set<AclEntry> acls = AclEntry.fromBytes(node.get(3).asText().getBytes(StandardCharsets.UTF_8));
            authorizer.updateCache(resource, new AclAuthorizer.VersionedAcls(
                CollectionConverters.asScala(acls).<AclEntry>toSet(), 1));
            put.add(resource);
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("verdicts", ask(authorizer, command.get("questions")));
        ArrayNode found = answer.putArray("found");
        for (JsonNode filter : command.get("filters")) {
            found.add(acls(authorizer, filter));
        }
        put.forEach(resource -> authorizer.updateCache(resource, AclAuthorizer.NoAcls()));
        return answer;
    }

    /** For each question [principal, host, type, name] the allowed operations, as bits; without a name: on any resource. */
    private static JsonNode ask(AclAuthorizer authorizer, JsonNode questions) throws Exception {
        ArrayNode answers = JSON.createArrayNode();
        for (JsonNode question : questions) {
            AuthorizableRequestContext caller = new Caller(SecurityUtils.parseKafkaPrincipal(question.get(0).asText()),
                InetAddress.getByName(question.get(1).asText()));
            ResourceType type = ResourceType.fromCode((byte) question.get(2).asInt());
            int bits = 0;
            for (AclOperation operation : AclOperation.values()) {
                if (operation != AclOperation.UNKNOWN && operation != AclOperation.ANY) {
                    boolean allowed = question.get(3).isNull()
                        ? authorizer.authorizeByResourceType(caller, operation, type) == AuthorizationResult.ALLOWED
                        : authorizer.authorize(caller, List.of(new Action(operation,
                            new ResourcePattern(type, question.get(3).asText(), PatternType.LITERAL), 1, true, true)))
                            .get(0) == AuthorizationResult.ALLOWED;
                    bits |= allowed ? 1 << operation.code() : 0;
                }
            }
            answers.add(bits);
        }
        return answers;
    }

    private static JsonNode acls(AclAuthorizer authorizer, JsonNode filter) {
        ArrayNode found = JSON.createArrayNode();
        authorizer.acls(filter(filter)).forEach(binding -> found.add(shown(binding)));
        return found;
    }

    private static JsonNode create(AclAuthorizer authorizer, JsonNode acls) throws Exception {
        List<AclBinding> bindings = new ArrayList<>();
        for (JsonNode acl : acls) {
            bindings.add(new AclBinding(resource(acl), new AccessControlEntry(acl.get(3).asText(), acl.get(4).asText(),
                AclOperation.fromCode((byte) acl.get(5).asInt()), AclPermissionType.fromCode((byte) acl.get(6).asInt()))));
        }
        ArrayNode refused = JSON.createArrayNode();
        for (var result : authorizer.createAcls(new Caller(KafkaPrincipal.ANONYMOUS, null), bindings)) {
            refused.add(result.toCompletableFuture().get().exception().isPresent());
        }
        return refused;
    }

    private static JsonNode delete(AclAuthorizer authorizer, JsonNode filters) throws Exception {
        List<AclBindingFilter> given = new ArrayList<>();
        filters.forEach(filter -> given.add(filter(filter)));
        ArrayNode deleted = JSON.createArrayNode();
        for (var result : authorizer.deleteAcls(new Caller(KafkaPrincipal.ANONYMOUS, null), given)) {
            deleted.add(result.toCompletableFuture().get().aclBindingDeleteResults().size());
        }
        return deleted;
    }

    private static ResourcePattern resource(JsonNode acl) {
        return new ResourcePattern(ResourceType.fromCode((byte) acl.get(0).asInt()), acl.get(1).asText(),
            PatternType.fromCode((byte) acl.get(2).asInt()));
    }

    private static AclBindingFilter filter(JsonNode f) {
        return new AclBindingFilter(
            new ResourcePatternFilter(ResourceType.fromCode((byte) f.get(0).asInt()), f.get(1).textValue(),
                PatternType.fromCode((byte) f.get(2).asInt())),
            new AccessControlEntryFilter(f.get(3).textValue(), f.get(4).textValue(),
                AclOperation.fromCode((byte) f.get(5).asInt()), AclPermissionType.fromCode((byte) f.get(6).asInt())));
    }

    private static ArrayNode shown(AclBinding binding) {
        return JSON.createArrayNode()
            .add(binding.pattern().resourceType().code())
            .add(binding.pattern().name())
            .add(binding.pattern().patternType().code())
            .add(binding.entry().principal())
            .add(binding.entry().host())
            .add(binding.entry().operation().code())
            .add(binding.entry().permissionType().code());
    }

    private static int supported(ResourceType type) {
        return AclEntry.supportedOperations(type).stream().mapToInt(operation -> 1 << operation.code()).sum();
    }

    /** Kafka's reading of a node's bytes; null if Kafka throws. */
    private static JsonNode read(String what, byte[] data) {
        try {
            if (!what.equals("acls")) {
                ResourcePattern found = what.equals("change")
                    ? LiteralAclChangeStore$.MODULE$.decode(data)
                    : ExtendedAclChangeStore$.MODULE$.decode(data);
                return JSON.createArrayNode().add(found.resourceType().code()).add(found.name()).add(found.patternType().code());
            }
            ArrayNode acls = JSON.createArrayNode();
            ResourcePattern any = new ResourcePattern(ResourceType.TOPIC, "any", PatternType.LITERAL);
            for (AclEntry acl : AclEntry.fromBytes(data)) {
                acls.add(shown(new AclBinding(any, acl.ace)));
            }
            return acls;
        } catch (Exception e) {
            return JSON.nullNode();
        }
    }

    private static boolean isNode(String name) {
        try {
            PathUtils.validatePath("/kafka-acl/Topic/" + name);
            return true;
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    private record Caller(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        @Override
        public String listenerName() {
            return "PLAINTEXT";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        @Override
        public int requestType() {
            return 3;
        }

        @Override
        public int requestVersion() {
            return 9;
        }

        @Override
        public String clientId() {
            return "judge";
        }

        @Override
        public int correlationId() {
            return 0;
        }
    }
}
