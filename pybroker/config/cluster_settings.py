"""The table of settings that a broker of a cluster has: Kafka's names, types, defaults and ranges."""

import re

from .broker_settings import NETWORK_THREADS_MAX
from .settings import INT_MAX, LONG_MAX, Choice, Range, Setting, Shape, Type, table

BOOLEAN, STRING, INT, LONG = Type.BOOLEAN, Type.STRING, Type.INT, Type.LONG
SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
PORT_MAX = 65535


def check_connect(text: str) -> None:
    """See that a text names servers, and a chroot if any. Raises ValueError."""
    servers, _, chroot = text.partition("/")
    for server in servers.split(","):
        found = SERVER.fullmatch(server.strip())
        if found is None or not 1 <= int(found["port"] or 1) <= PORT_MAX:
            raise ValueError(server)
    if chroot and "" in chroot.removesuffix("/").split("/"):
        raise ValueError(chroot)


CLUSTER = table(
    Setting(
        "zookeeper.connect",
        STRING,
        None,
        "The ZooKeeper of the cluster: HOST:PORT,HOST:PORT/chroot. The broker makes the chroot if it is not there. Not "
        "set: a lone broker, whose coordination store is embedded.",
        Shape("HOST:PORT,HOST:PORT,... and perhaps a chroot, as in zk1:2181,zk2:2181/kafka", check_connect),
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        INT,
        "18000",
        "How long ZooKeeper waits for a sign of life before it ends the broker's session. The death of a process is "
        "proven earlier (broker.death.proof.enable); this is for a host that falls silent.",
        Range(1),
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        INT,
        None,
        "How long a start waits for ZooKeeper to answer. Not set: zookeeper.session.timeout.ms.",
        Range(1),
    ),
    Setting(
        "broker.death.proof.enable",
        BOOLEAN,
        "true",
        "Let the controller take a broker whose connection ended, and who refuses the next one at its own address, for "
        "dead at once. If false, it waits until the broker's session has expired, as Kafka does. Kafka has no such "
        "setting.",
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "Have the controller move what the broker leads to others before it stops.",
    ),
    Setting(
        "controlled.shutdown.max.retries",
        INT,
        "3",
        "How often a stopping broker asks the controller again to move what it leads. All of it takes 10 s at most.",
        Range(0),
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        LONG,
        "5000",
        "How long it waits before it asks again: less, where controlled.shutdown.max.retries would not fit into 10 s.",
        Range(0),
    ),
    Setting(
        "replica.selector.class",
        STRING,
        None,
        "Who tells a consumer which replica to fetch from: org.apache.kafka.common.replica.RackAwareReplicaSelector "
        "sends one that names its rack to an in-sync replica there (broker.rack). Not set, or "
        "org.apache.kafka.common.replica.LeaderSelector: consumers fetch from leaders.",
        Choice((
            "org.apache.kafka.common.replica.LeaderSelector",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        )),
    ),
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "Let the controller give leadership back to preferred replicas, which are the first of their partitions, once "
        "they are in sync again.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "How often the controller looks for preferred replicas that do not lead.",
        Range(1),
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        "10",
        "The share of the partitions that a broker is the preferred replica of, and does not lead, above which the "
        "controller gives their leadership back to it.",
        Range(0),
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "How long a follower may be behind, or not fetch, before its leader has it taken out of the in-sync replicas.",
        Range(1),
    ),
    Setting(
        "num.replica.fetchers",
        INT,
        "1",
        "Threads that copy what other brokers lead; what one of them leads is copied by one thread. They take no "
        "processor from threads that serve clients. A connection to a leader stays with its thread until it is made "
        "anew.",
        Range(1, NETWORK_THREADS_MAX),
        dynamic=True,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        INT,
        "500",
        "How long a leader holds back the answer to a follower's fetch while nothing comes. It may not be more than "
        "replica.lag.time.max.ms.",
        Range(1),
    ),
    Setting(
        "replica.fetch.min.bytes",
        INT,
        "1",
        "Bytes that a follower's fetch waits for, for replica.fetch.wait.max.ms at most.",
        Range(1),
    ),
    Setting(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        "Bytes of one partition in the answer to a follower's fetch; a larger batch comes whole.",
        Range(0),
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "Bytes of the whole answer to a follower's fetch; the first batch comes whole.",
        Range(0),
    ),
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "Bytes a second that this broker gives followers outside the ISR of the partitions it leads that are named in "
        "leader.replication.throttled.replicas of their topics.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "Bytes a second that this broker copies of partitions in which it is behind its leader, and that are named in "
        "follower.replication.throttled.replicas of their topics.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        str(LONG_MAX),
        "Without effect: no replica is moved between log directories.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "replica.fetch.backoff.ms",
        INT,
        "1000",
        "How long a follower waits after an error before it asks its leader again.",
        Range(0, INT_MAX),
    ),
)
