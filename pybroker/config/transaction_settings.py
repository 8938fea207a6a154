"""The table of settings for transactions: Kafka's names, types, defaults and ranges, and what each does here."""

from .broker_settings import BOOLEAN, INT, SHORT
from .settings import Range, Setting, table

TRANSACTIONS = table(
    Setting(
        "transaction.state.log.num.partitions",
        INT,
        "50",
        "Partitions of __transaction_state when it is created. Do not change the number later: it decides which "
        "partition a transactional id is in.",
        Range(1),
    ),
    Setting(
        "transaction.state.log.replication.factor",
        SHORT,
        "3",
        "Replicas of __transaction_state when it is created. Until the cluster has so many brokers, the topic is not "
        "created. A broker that is not in a cluster creates it with one replica.",
        Range(1),
    ),
    Setting(
        "transaction.state.log.min.isr",
        INT,
        "2",
        "min.insync.replicas of __transaction_state, at most its number of replicas.",
        Range(1),
    ),
    Setting(
        "transaction.state.log.segment.bytes", INT, "104857600", "segment.bytes of __transaction_state.", Range(1)
    ),
    Setting(
        "transaction.state.log.load.buffer.size",
        INT,
        "5242880",
        "Bytes that the broker reads at a time when it loads the states of transactional ids.",
        Range(1),
    ),
    Setting("transaction.max.timeout.ms", INT, "900000", "The longest timeout that a producer may ask for.", Range(1)),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        "10000",
        "How often the broker looks for transactions that are older than their timeouts, and aborts them.",
        Range(1),
    ),
    Setting(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "How long the broker keeps a transactional id that is not used and has no open transaction.",
        Range(1),
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        "How often the broker looks for expired transactional ids.",
        Range(1),
    ),
    Setting(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "Ask the coordinator, before the first batch of a transaction is written to a partition, whether the "
        "transaction is open and has this partition.",
        dynamic=True,
    ),
)
