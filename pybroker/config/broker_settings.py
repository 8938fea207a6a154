"""The table of broker settings: Kafka's names, types, defaults and ranges, and what each does here.

Settings that the broker honours are listed here or in another table. Kafka's others are in `no_effect.py`, and the log
names those that are set at the start, so that users know which have no effect.
"""

from pybroker.model import TEXT_BYTES_MAX, HostPort, check_told

from .listeners import SECURITY_PROTOCOLS, parse_advertised, parse_endpoints, parse_per_ip, parse_protocols
from .settings import INT_MAX, LONG_MAX, Choice, Range, Setting, Shape, Type, table

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = (
    Type.BOOLEAN,
    Type.STRING,
    Type.INT,
    Type.SHORT,
    Type.LONG,
    Type.DOUBLE,
    Type.LIST,
)
NEVER = str(LONG_MAX)
NETWORK_THREADS_MAX = 1024
"""Each takes two file descriptors and a megabyte of memory."""
CODECS = Choice(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))


GENERAL = table(
    Setting(
        "broker.id",
        INT,
        "-1",
        "The id of the broker in its cluster. With -1 the broker takes the id that its log dirs record; if they are "
        "new, the next free one above 1000.",
        Range(-1),
    ),
    Setting(
        "node.id",
        INT,
        "-1",
        "Another name of broker.id, used if only this one is set.",
        Range(-1),
    ),
    Setting(
        "broker.rack",
        STRING,
        None,
        "The rack or zone of the broker, which clients get in Metadata.",
        Shape(f"text of at most {TEXT_BYTES_MAX} bytes", check_told),
    ),
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Create a missing topic, with num.partitions and default.replication.factor, when a client asks for its "
        "metadata and allows that.",
    ),
    Setting(
        "delete.topic.enable", BOOLEAN, "true", "Allow DeleteTopics. If false, the answer is TOPIC_DELETION_DISABLED."
    ),
    Setting("num.partitions", INT, "1", "Partitions of a new topic, if its creator does not say how many.", Range(1)),
    Setting(
        "default.replication.factor",
        INT,
        "1",
        "Replicas of a new topic, if its creator does not say how many.",
        Range(1),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        "1",
        "Replicas that must be in sync for a Produce with acks=all; with fewer the Produce fails with "
        "NOT_ENOUGH_REPLICAS. A partition that has fewer replicas needs all of them.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "In a cluster: a replica that is not in sync may become leader if no in-sync replica is alive. This may lose "
        "acknowledged records.",
        dynamic=True,
    ),
    Setting(
        "background.threads",
        INT,
        "16",
        "Threads that create the logs of new topics, flush them when the broker stops, and delete them. Kafka's "
        "default is 10. The threads mostly wait for fsyncs, and the file system does several fsyncs together.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        INT,
        "1",
        "Threads for each log dir that recover partitions at a start and flush them when the broker stops.",
        Range(1),
        dynamic=True,
    ),
)

NETWORK = table(
    Setting(
        "listeners",
        STRING,
        "PLAINTEXT://:9092",
        "The address to listen on. An empty host means every interface, port 0 a free port. Several listeners, "
        "separated by commas, have different names, CLIENTS://:9092,BROKERS://:9093, that must be in "
        "listener.security.protocol.map. While the broker runs listeners can be added, and removed except for that of "
        "inter.broker.listener.name.",
        Shape("PLAINTEXT://HOST:PORT", parse_endpoints),
        dynamic=True,
    ),
    Setting(
        "advertised.listeners",
        STRING,
        None,
        "The address that clients connect to, if it differs from the one in listeners: behind a proxy, in a container. "
        "Not set: the address in listeners, with the machine's name if that has no host. Port 0 stands for the port "
        "that the broker listens on. Each of several listeners has an address, which is sent to the clients of that "
        "listener; a listener that is left out is not advertised.",
        Shape("PLAINTEXT://HOST:PORT with a host that others can reach", parse_advertised),
        dynamic=True,
    ),
    Setting(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener, by its name: CLIENTS:SASL_SSL,BROKERS:PLAINTEXT. The protocol of an "
        "open listener cannot change.",
        Shape("NAME:PROTOCOL separated by commas, with one of " + ", ".join(SECURITY_PROTOCOLS), parse_protocols),
        dynamic=True,
    ),
    Setting(
        "inter.broker.listener.name",
        STRING,
        None,
        "The listener for connections between brokers, one of advertised.listeners. Not set: the listener whose name "
        "is the value of security.inter.broker.protocol.",
    ),
    Setting(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "The security protocol, and the name of the listener, for connections between brokers if "
        "inter.broker.listener.name is not set.",
        Choice(SECURITY_PROTOCOLS),
    ),
    Setting(
        "num.network.threads",
        INT,
        "3",
        "Threads that serve the connections. Not set: one less than the processors, and at least one. A connection "
        "stays with its thread: added threads get only new connections, and removed ones keep their old connections.",
        Range(1, NETWORK_THREADS_MAX),
        dynamic=True,
    ),
    Setting(
        "num.io.threads",
        INT,
        "8",
        "Threads for requests that need the disk, so that they do not hold up the event loop; the broker uses at most "
        "one for each processor.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "queued.max.requests",
        INT,
        "500",
        "Requests that may wait for a handler. With more, the broker stops reading requests other than Produce and "
        "Fetch.",
        Range(1),
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        "-1",
        "Bytes of received requests without an answer that the broker holds in memory. Above that, it stops reading "
        "from a connection, unless the next request has arrived whole. -1 is 512 MiB.",
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        "104857600",
        "The largest request. The broker closes a connection that announces a larger one.",
        Range(1),
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        "262144",
        "SO_SNDBUF of each connection; -1 leaves it to the system. Kafka's 102400 wakes a single fast reader too "
        "often. The system's choice grows to megabytes, which with several readers exceeds the CPU caches.",
        Range(-1),
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        "-1",
        "SO_RCVBUF of each connection; -1 leaves it to the system, which lets it grow for clients that send much. "
        "With Kafka's 102400 a request of 1 MiB arrives in many pieces and costs twice the CPU time.",
        Range(-1),
    ),
    Setting(
        "socket.listen.backlog.size",
        INT,
        "4096",
        "New connections that may wait until the broker accepts them: the backlog of listen(2), of which the system "
        "uses no more than net.core.somaxconn. If it is full Linux answers with SYN cookies, and resets a client that "
        "sends more than one segment before it is accepted: with Kafka's 50, some of 200 that connect at once.",
        Range(1),
    ),
    Setting(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "The broker closes a connection that sends no request for this long. With a negative number it closes none.",
    ),
    Setting(
        "max.connections",
        INT,
        str(INT_MAX),
        "Connections that may be open at once. The broker accepts further ones when others close. If there are several "
        "listeners, the inter-broker listener still accepts, and the longest idle connection of another listener is "
        "closed. A listener can have its own limit: listener.name.clients.max.connections.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "max.connection.creation.rate",
        INT,
        str(INT_MAX),
        "Connections accepted per second, as an average over ten seconds; further ones wait. If there are several "
        "listeners, those of the inter-broker listener do not count. A listener can have its own rate: "
        "listener.name.clients.max.connection.creation.rate.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        str(INT_MAX),
        "Connections that may be open at once from one address. The broker closes further ones at once.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "Overrides of max.connections.per.ip for some addresses: 127.0.0.1:100,::1:200. Host names are not allowed.",
        Shape("ADDRESS:NUMBER separated by commas", parse_per_ip),
        dynamic=True,
    ),
    Setting(
        "fetch.max.bytes",
        INT,
        "57671680",
        "The most bytes of records in one Fetch response, even if the client allows more. A first batch that is larger "
        "is returned whole.",
        Range(1024),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "Incremental fetch sessions that the broker keeps. With 0 every Fetch is a full fetch.",
        Range(0),
    ),
)

METRICS = table(
    Setting(
        "metrics.listener",
        STRING,
        None,
        "The address that serves metrics to Prometheus over HTTP at /metrics, and the state of the broker to "
        "supervisors at /healthz and /readyz. An empty host means every interface, port 0 a free port. Not set: no "
        "metrics. Kafka has no such setting.",
        Shape("HOST:PORT", HostPort.parse),
    ),
    Setting(
        "metrics.topics.max",
        INT,
        "1000",
        "Topics with metrics of their own. The others are summed, with (other) as their topic, and their partitions "
        "have no metrics. A topic keeps its metrics while the broker runs; the largest topics are chosen first. Kafka "
        "has no such setting.",
        Range(0),
    ),
    Setting(
        "metrics.groups.max",
        INT,
        "1000",
        "Consumer groups with metrics of their own. The others are summed, with (other) as their group. Kafka has no "
        "such setting.",
        Range(0),
    ),
    Setting(
        "metrics.partitions.max",
        INT,
        "20000",
        "The most samples that each metric with the label partition has. What is left out is counted by "
        "pybroker_samples_left_out. Kafka has no such setting.",
        Range(0),
    ),
)

TRACING = table(
    Setting(
        "tracing.enable",
        BOOLEAN,
        "false",
        "Export a span for each request to an OpenTelemetry collector. The variables OTEL_... of the environment name "
        "the collector and set the rest; it needs pybroker[otel]. Kafka has no such setting.",
    ),
    Setting(
        "tracing.samples.per.second",
        INT,
        "10",
        "Produce and Fetch requests of which spans are made: so many a second for Produce, for Fetch of consumers and "
        "for Fetch of followers, in each network thread. Kafka has no such setting.",
        Range(0, 200),
    ),
)

GROUPS = table(
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        "How long a group waits for more members after its first member joined, before it assigns partitions. The "
        "default of `pybroker serve` is 0.",
        Range(0),
    ),
    Setting(
        "group.min.session.timeout.ms", INT, "6000", "The shortest session timeout a member may ask for.", Range(0)
    ),
    Setting(
        "group.max.session.timeout.ms", INT, "1800000", "The longest session timeout a member may ask for.", Range(0)
    ),
    Setting("group.max.size", INT, str(INT_MAX), "Members that one group may have.", Range(1)),
    Setting(
        "group.metadata.memory.bytes",
        LONG,
        str(128 << 20),
        "Bytes of memory for the metadata and assignments of all members of all groups. A member that would need more "
        "is refused with GROUP_MAX_SIZE_REACHED. Kafka has no such setting.",
        Range(1),
    ),
    Setting("offset.metadata.max.bytes", INT, "4096", "The longest metadata that a client may commit with an offset."),
    Setting(
        "offsets.topic.num.partitions",
        INT,
        "50",
        "Partitions of __consumer_offsets when it is created. Do not change the number later: it decides which "
        "partition a group is in.",
        Range(1),
    ),
    Setting(
        "offsets.topic.replication.factor",
        SHORT,
        "1",
        "Replicas of __consumer_offsets when it is created. Kafka's default is 3, which one broker cannot have; in a "
        "cluster that does not set it, it is 3 here too.",
        Range(1),
    ),
    Setting("offsets.topic.segment.bytes", INT, "104857600", "segment.bytes of __consumer_offsets.", Range(1)),
    Setting(
        "offsets.topic.compression.codec",
        INT,
        "0",
        "Codec of the batches written to __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        Range(0, 4),
    ),
    Setting(
        "offsets.retention.minutes",
        INT,
        "10080",
        "How long the broker keeps the offsets of a group after its last member left, or after it unsubscribed from "
        "the topic.",
        Range(1),
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "How often the broker looks for expired offsets.",
        Range(1),
    ),
    Setting(
        "offsets.load.buffer.size",
        INT,
        "5242880",
        "Bytes that the broker reads at a time when it loads the offsets of groups.",
        Range(1),
    ),
    Setting(
        "offsets.commit.timeout.ms",
        INT,
        "5000",
        "How long an offset commit waits until all in-sync replicas of __consumer_offsets have it.",
        Range(1),
    ),
)
