"""The table of broker settings: Kafka's names, types, defaults and ranges, and what each does here.

A setting is listed when the broker honours it: a name that is not here warns at start, so that nobody believes in a
setting that does nothing.
"""

from pybroker.model import Endpoint, HostPort

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


def _plaintext(text: str) -> None:
    if Endpoint.parse(text).listener != "PLAINTEXT":
        raise ValueError(text)


def _advertised(text: str) -> None:
    _plaintext(text)
    if Endpoint.parse(text).host in ("", "0.0.0.0", "::"):
        raise ValueError(text)


GENERAL = table(
    Setting(
        "broker.id",
        INT,
        "-1",
        "The broker's number in its cluster. -1 keeps the number that the log dirs record and, in fresh ones, takes "
        "the next free number above 1000.",
        Range(-1),
    ),
    Setting("broker.rack", STRING, None, "The rack or zone that the broker stands in, told to clients in Metadata."),
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Create an unknown topic, with num.partitions and default.replication.factor, when a client that allows it "
        "asks for the topic's metadata.",
    ),
    Setting(
        "delete.topic.enable", BOOLEAN, "true", "Allow DeleteTopics; when false it answers TOPIC_DELETION_DISABLED."
    ),
    Setting("num.partitions", INT, "1", "Partitions of a topic that is created without saying how many.", Range(1)),
    Setting(
        "default.replication.factor", INT, "1", "Replicas of a topic that is created without saying how many.", Range(1)
    ),
    Setting(
        "min.insync.replicas",
        INT,
        "1",
        "Replicas that must be in sync for a produce with acks=all; with fewer it fails with NOT_ENOUGH_REPLICAS.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "background.threads",
        INT,
        "16",
        "Threads that make the logs of new topics, flush them at the end and delete them. Kafka's default is 10; they "
        "wait for fsyncs, which the file system does together.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        INT,
        "1",
        "Threads for each log dir that recover partitions at start and flush them at the end.",
        Range(1),
        dynamic=True,
    ),
)

NETWORK = table(
    Setting(
        "listeners",
        STRING,
        "PLAINTEXT://:9092",
        "The address to listen at. An empty host means every interface, port 0 a free port.",
        Shape("PLAINTEXT://HOST:PORT", _plaintext),
    ),
    Setting(
        "advertised.listeners",
        STRING,
        None,
        "The address that clients are told to connect to, where it differs from the one listened at: behind a proxy, "
        "in a container. Not set: the address of listeners, or the machine's name if that has no host. Port 0 stands "
        "for the port listened at.",
        Shape("PLAINTEXT://HOST:PORT with a host that others can reach", _advertised),
        dynamic=True,
    ),
    Setting(
        "num.network.threads",
        INT,
        "3",
        "Threads that serve the sockets. Not set: one for each processor but one.",
        Range(1, NETWORK_THREADS_MAX),
    ),
    Setting(
        "num.io.threads",
        INT,
        "8",
        "Threads for requests whose disk work would hold up the loop that serves the others, one for each processor at "
        "most.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "queued.max.requests",
        INT,
        "500",
        "Requests that may wait for a handler; with more, connections are not read, but for Produce and Fetch.",
        Range(1),
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        "-1",
        "Bytes of requests in memory, received and not yet answered, above which a connection is not read unless its "
        "next request is whole already; -1 is 512 MiB.",
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        "104857600",
        "The largest request; a connection that announces a larger one is closed.",
        Range(1),
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        "262144",
        "SO_SNDBUF of each connection; -1 leaves it to the system. Kafka's 102400 wakes a single fast reader too often,"
        " and the system's own choice, which grows to megabytes, costs several of them their caches.",
        Range(-1),
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        "-1",
        "SO_RCVBUF of each connection; -1 leaves it to the system, which lets it grow for those that send much. With"
        " Kafka's 102400 a request of 1 MiB arrives in many pieces and costs twice the cpu.",
        Range(-1),
    ),
    Setting(
        "socket.listen.backlog.size", INT, "50", "Connections that may wait to be accepted, as for listen(2).", Range(1)
    ),
    Setting(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "A connection without a request for this long is closed; a negative number closes none.",
    ),
    Setting(
        "max.connections",
        INT,
        str(INT_MAX),
        "Connections open at once; further ones wait to be accepted.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        str(INT_MAX),
        "Connections open at once from one address; further ones are closed at once.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "fetch.max.bytes",
        INT,
        "57671680",
        "The most bytes of records in one Fetch answer, whatever the client allows; one batch is always let through.",
        Range(1024),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "Fetch sessions remembered at once; 0 makes every fetch a full one.",
        Range(0),
    ),
)

METRICS = table(
    Setting(
        "metrics.listener",
        STRING,
        None,
        "Where to show metrics to Prometheus over HTTP: /metrics, and /healthz and /readyz for who starts and stops "
        "brokers. An empty host means every interface, port 0 a free port. Not set: nowhere. Kafka has no such "
        "setting.",
        Shape("HOST:PORT", HostPort.parse),
    ),
)

GROUPS = table(
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        "How long an empty group waits for more members after its first before it assigns partitions. `pybroker "
        "serve` sets it to 0 unless it is set otherwise.",
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
        "Bytes that all members together may hold in memory by their metadata and assignments; who asks for more is "
        "refused with GROUP_MAX_SIZE_REACHED. Kafka has no such setting.",
        Range(1),
    ),
    Setting("offset.metadata.max.bytes", INT, "4096", "The longest metadata that a client may commit with an offset."),
    Setting(
        "offsets.topic.num.partitions",
        INT,
        "50",
        "Partitions of __consumer_offsets when it is created; must not change after that, groups are placed by it.",
        Range(1),
    ),
    Setting(
        "offsets.topic.replication.factor",
        SHORT,
        "1",
        "Replicas of __consumer_offsets when it is created. Kafka's own default is 3, which one broker cannot give.",
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
        "How long offsets are kept after their group lost its last member, or its subscription to the topic.",
        Range(1),
    ),
    Setting(
        "offsets.retention.check.interval.ms", LONG, "600000", "How often expired offsets are looked for.", Range(1)
    ),
    Setting(
        "offsets.load.buffer.size", INT, "5242880", "Bytes read at a time when a group's offsets are loaded.", Range(1)
    ),
    Setting(
        "offsets.commit.timeout.ms",
        INT,
        "5000",
        "How long an offset commit waits for the replicas of __consumer_offsets.",
        Range(1),
    ),
)
