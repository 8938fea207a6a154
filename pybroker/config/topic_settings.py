"""The table of topic settings: every name that Kafka 3.9 takes for a topic, and what each does here.

All of Kafka's names are accepted, so that programs written for Kafka can create their topics; a setting without effect
says so in its text. `synonyms` names the broker settings for the default; the first one that is set wins.
"""

import re

from .broker_settings import BOOLEAN, CODECS, DOUBLE, INT, LIST, LONG, NEVER, STRING
from .settings import Choice, Range, Setting, Shape, table

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


THROTTLED = re.compile(r"\*|((?:[0-9]{1,9}:[0-9]{1,9})?(?:,|$))*")


def _check_replicas(text: str) -> None:
    """Check that a text is a list of PARTITION:BROKER, or *. Raises ValueError."""
    if not THROTTLED.fullmatch(text):
        raise ValueError(text)


REPLICAS = Shape("PARTITION:BROKER,PARTITION:BROKER,... or *", _check_replicas)


def _of(name: str) -> tuple[tuple[str, int], ...]:
    return ((name, 1),)


SEGMENTS = table(
    Setting(
        "segment.bytes",
        INT,
        "1073741824",
        "The size at which a partition begins a new segment file.",
        Range(14),
        synonyms=_of("log.segment.bytes"),
    ),
    Setting(
        "segment.ms",
        LONG,
        "604800000",
        "The age at which a partition begins a new segment file.",
        Range(1),
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    ),
    Setting(
        "segment.jitter.ms",
        LONG,
        "0",
        "The largest random time by which segment.ms is shortened, so that not all partitions roll at once.",
        Range(0),
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    ),
    Setting(
        "segment.index.bytes",
        INT,
        "10485760",
        "The largest offset index of a segment. When it is full, the partition begins a new segment.",
        Range(4),
        synonyms=_of("log.index.size.max.bytes"),
    ),
    Setting(
        "index.interval.bytes",
        INT,
        "4096",
        "Bytes of records between two entries of a segment's indexes.",
        Range(0),
        synonyms=_of("log.index.interval.bytes"),
    ),
    Setting(
        "file.delete.delay.ms",
        LONG,
        "60000",
        "How long a deleted file stays on disk, under a name that ends in .deleted, before the broker removes it.",
        Range(0),
        synonyms=_of("log.segment.delete.delay.ms"),
    ),
    Setting(
        "preallocate",
        BOOLEAN,
        "false",
        "Without effect: the broker always preallocates space, without changing the size of the file.",
        synonyms=_of("log.preallocate"),
    ),
)

RETENTION = table(
    Setting(
        "cleanup.policy",
        LIST,
        "delete",
        "What happens to old segments: delete drops them by age and size, compact keeps the last record of each key.",
        Choice(("compact", "delete")),
        synonyms=_of("log.cleanup.policy"),
    ),
    Setting(
        "retention.ms",
        LONG,
        "604800000",
        "How long records are kept; -1 for ever.",
        Range(-1),
        synonyms=(("log.retention.ms", 1), ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    ),
    Setting(
        "retention.bytes",
        LONG,
        "-1",
        "The size above which a partition drops its oldest segments; -1 for no limit.",
        synonyms=_of("log.retention.bytes"),
    ),
    Setting(
        "delete.retention.ms",
        LONG,
        "86400000",
        "How long compaction keeps a tombstone, so that a slow reader still sees the deletion.",
        Range(0),
        synonyms=_of("log.cleaner.delete.retention.ms"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "The share of bytes not yet compacted at which the broker compacts a partition.",
        Range(0, 1),
        synonyms=_of("log.cleaner.min.cleanable.ratio"),
    ),
    Setting(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "Records younger than this are not compacted.",
        Range(0),
        synonyms=_of("log.cleaner.min.compaction.lag.ms"),
    ),
    Setting(
        "max.compaction.lag.ms",
        LONG,
        NEVER,
        "The age at which a record must become eligible for compaction, whatever the dirty ratio.",
        Range(1),
        synonyms=_of("log.cleaner.max.compaction.lag.ms"),
    ),
)

RECORDS = table(
    Setting(
        "max.message.bytes",
        INT,
        "1048588",
        "The largest batch that the broker accepts, compressed as it arrives.",
        Range(0),
        synonyms=_of("message.max.bytes"),
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "The codec of stored batches. With producer the broker stores each batch as it arrives; with another codec it "
        "recompresses batches.",
        CODECS,
        synonyms=_of("compression.type"),
    ),
    Setting(
        "compression.gzip.level",
        INT,
        "-1",
        "The level at which the broker compresses with gzip; -1 is the library's default.",
        Range(1, 9, also=-1),
        synonyms=_of("compression.gzip.level"),
    ),
    Setting(
        "compression.lz4.level",
        INT,
        "9",
        "The level at which the broker compresses with lz4.",
        Range(1, 17),
        synonyms=_of("compression.lz4.level"),
    ),
    Setting(
        "compression.zstd.level",
        INT,
        "3",
        "The level at which the broker compresses with zstd; negative levels are faster.",
        Range(-131072, 22),
        synonyms=_of("compression.zstd.level"),
    ),
    Setting(
        "record.validation",
        STRING,
        "full",
        "What the broker checks in a compressed batch before it stores it. full: it decompresses the batch and checks "
        "each record, as Kafka does. envelope: only header and CRC; that is faster, but consumers cannot read past a "
        "batch with bad content. Kafka has no such setting.",
        Choice(("full", "envelope")),
        synonyms=_of("record.validation"),
    ),
    Setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whether a record's timestamp is the producer's (CreateTime) or that of the append (LogAppendTime).",
        Choice(("CreateTime", "LogAppendTime")),
        synonyms=_of("log.message.timestamp.type"),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        LONG,
        NEVER,
        "How far a producer's timestamp may lie before the broker's clock. An older one fails with INVALID_TIMESTAMP.",
        Range(0),
        synonyms=_of("log.message.timestamp.before.max.ms"),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        LONG,
        NEVER,
        "How far a producer's timestamp may lie after the broker's clock. A later one fails with INVALID_TIMESTAMP.",
        Range(0),
        synonyms=_of("log.message.timestamp.after.max.ms"),
    ),
    Setting(
        "message.timestamp.difference.max.ms",
        LONG,
        NEVER,
        "The older name for both limits above. It counts for a limit that has its default value.",
        Range(0),
        synonyms=_of("log.message.timestamp.difference.max.ms"),
    ),
    Setting(
        "message.format.version",
        STRING,
        "3.0-IV1",
        "Without effect: the format on disk is always record batch v2.",
        synonyms=_of("log.message.format.version"),
    ),
    Setting(
        "message.downconversion.enable",
        BOOLEAN,
        "true",
        "Without effect: the broker does not serve clients that need an older record format.",
        synonyms=_of("log.message.downconversion.enable"),
    ),
)

DURABILITY = table(
    Setting(
        "flush.messages",
        LONG,
        NEVER,
        "After this many appended records the broker flushes a partition to disk (fdatasync).",
        Range(1),
        synonyms=_of("log.flush.interval.messages"),
    ),
    Setting(
        "flush.ms",
        LONG,
        NEVER,
        "The longest time until an appended record is flushed to disk.",
        Range(0),
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        "1",
        "Replicas that must be in sync for a Produce with acks=all; with fewer the Produce fails with "
        "NOT_ENOUGH_REPLICAS. A partition that has fewer replicas needs all of them.",
        Range(1),
        synonyms=_of("min.insync.replicas"),
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "In a cluster: a replica that is not in sync may become leader if no in-sync replica is alive. This may lose "
        "acknowledged records. No effect for a partition with one replica.",
        synonyms=_of("unclean.leader.election.enable"),
    ),
    Setting(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "Leader replicas to which leader.replication.throttled.rate applies: PARTITION:BROKER, or * for all.",
        REPLICAS,
    ),
    Setting(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "Follower replicas to which follower.replication.throttled.rate applies: PARTITION:BROKER, or * for all.",
        REPLICAS,
    ),
)

TIERS = table(
    Setting(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "Without effect: there is no tiered storage, and true is refused.",
        Choice(("false",)),
    ),
    Setting("remote.log.copy.disable", BOOLEAN, "false", "Without effect: there is no tiered storage."),
    Setting("remote.log.delete.on.disable", BOOLEAN, "false", "Without effect: there is no tiered storage."),
    Setting(
        "local.retention.ms",
        LONG,
        "-2",
        "Without effect: there is no tiered storage.",
        Range(-2),
        synonyms=_of("log.local.retention.ms"),
    ),
    Setting(
        "local.retention.bytes",
        LONG,
        "-2",
        "Without effect: there is no tiered storage.",
        Range(-2),
        synonyms=_of("log.local.retention.bytes"),
    ),
)
