"""The table of settings for brokers of a cluster, with Kafka's names, types, defaults and ranges."""

import re
from typing import NamedTuple

from .broker_settings import NETWORK_THREADS_MAX
from .settings import INT_MAX, LONG_MAX, Choice, Range, Setting, Shape, Type, table

BOOLEAN, STRING, INT, LONG, LIST = Type.BOOLEAN, Type.STRING, Type.INT, Type.LONG, Type.LIST
SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
PORT_MAX = 65535


def check_connect(text: str) -> None:
    """Check that a text lists servers, with an optional chroot. Raises ValueError."""
    servers, _, chroot = text.partition("/")
    for server in servers.split(","):
        found = SERVER.fullmatch(server.strip())
        if found is None or not 1 <= int(found["port"] or 1) <= PORT_MAX:
            raise ValueError(server)
    if chroot and "" in chroot.removesuffix("/").split("/"):
        raise ValueError(chroot)


class StoreWords(NamedTuple):
    """The words for a cluster's store: its name, the option of `pybroker serve`, and what a path in its address is."""

    name: str
    option: str
    path: str

    @classmethod
    def of(cls, connect: str) -> "StoreWords":
        """Return the words for a value of zookeeper.connect or etcd.connect."""
        return cls("etcd", "--etcd", "prefix") if "://" in connect else cls("ZooKeeper", "--zookeeper", "chroot")


def check_ids(text: str) -> None:
    """Check that a text lists ids of brokers. Raises ValueError."""
    for each in filter(None, text.split(",")):
        if not re.fullmatch("[0-9]{1,10}", each) or int(each) > INT_MAX:
            raise ValueError(text)


CLUSTER = table(
    Setting(
        "zookeeper.connect",
        STRING,
        None,
        "The ZooKeeper of the cluster: HOST:PORT,HOST:PORT/chroot. The broker creates the chroot if it is missing. Not "
        "set: a lone broker, with an embedded coordination store.",
        Shape("HOST:PORT,HOST:PORT,... and perhaps a chroot, as in zk1:2181,zk2:2181/kafka", check_connect),
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        INT,
        "18000",
        "How long ZooKeeper waits for a sign of life before it expires the broker's session. A dead process is "
        "detected earlier (broker.death.proof.enable); this timeout is for hosts that do not respond.",
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
        "Let the controller consider a broker dead at once if its connection ends and its address refuses the next "
        "connection. If false, the controller waits until the broker's session has expired, as Kafka does. Kafka has "
        "no such setting.",
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "Let the controller move the broker's leadership to other brokers before it stops.",
    ),
    Setting(
        "controlled.shutdown.max.retries",
        INT,
        "3",
        "How often a stopping broker retries to have its leadership moved. All attempts together take at most 10 s.",
        Range(0),
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        LONG,
        "5000",
        "How long it waits before a retry; shorter if controlled.shutdown.max.retries would not fit into 10 s.",
        Range(0),
    ),
    Setting(
        "unclean.recovery.timeout.ms",
        LONG,
        "30000",
        "How long a partition waits for absent replicas if each live replica of its ISR may have lost records with the "
        "power; then the longest log leads. The wait ends once all replicas are there.",
        Range(0),
    ),
    Setting(
        "replica.selector.class",
        STRING,
        None,
        "How the replica is selected that a consumer fetches from. "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector sends a consumer that gives its rack to an in-sync "
        "replica there (broker.rack). Not set, or org.apache.kafka.common.replica.LeaderSelector: consumers fetch from "
        "leaders.",
        Choice((
            "org.apache.kafka.common.replica.LeaderSelector",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        )),
    ),
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "Let the controller give leadership back to preferred replicas, the first in their partition's list, once they "
        "are in sync again.",
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
        "Of the partitions whose preferred replica is on a broker, the percentage that it does not lead above which "
        "the controller gives their leadership back to it.",
        Range(0),
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "How long a follower may be behind, or not fetch, before its leader removes it from the ISR.",
        Range(1),
    ),
    Setting(
        "num.replica.fetchers",
        INT,
        "1",
        "Threads that fetch from other brokers; each leader broker is fetched from by one thread. They do not reduce "
        "num.network.threads. A connection to a leader stays with its thread until it is opened again.",
        Range(1, NETWORK_THREADS_MAX),
        dynamic=True,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        INT,
        "500",
        "How long a leader delays the response to a follower's fetch while there are no new records. At most "
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
        "Bytes of one partition in the response to a follower's fetch; a larger first batch is returned whole.",
        Range(0),
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "Bytes of the whole response to a follower's fetch; a larger first batch is returned whole.",
        Range(0),
    ),
    Setting(
        "reassign.throttle.note",
        STRING,
        "",
        "The throttle that pybroker reassign has set, as the default of all brokers, so that any machine can remove it "
        "later. No broker acts by it.",
        dynamic=True,
    ),
    Setting(
        "auto.balance.enable",
        BOOLEAN,
        "false",
        "Let the controller move replicas in throttled batches. Its goals are those of pybroker reassign plan "
        "--spread: even bytes, then even numbers of replicas and preferred leaders. Nothing moves while a broker "
        "is absent, a partition is under-replicated, or others move replicas. If it is switched off, the batch under "
        "way ends, and no other begins. The controller's broker counts: set it for all brokers. Kafka has none of "
        "auto.balance.*.",
        dynamic=True,
    ),
    Setting(
        "auto.balance.check.interval.seconds",
        LONG,
        "300",
        "How often the balancer looks whether the brokers are even, and how long others must have moved nothing before "
        "it moves replicas.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "auto.balance.threshold.percentage",
        INT,
        "20",
        "The balancer begins when a broker's bytes, or its replicas, are further than this from its share. It ends "
        "when all are within 10 percent, or as near as they get.",
        Range(11, 1000),
        dynamic=True,
    ),
    Setting(
        "auto.balance.throttled.rate",
        LONG,
        "20000000",
        "Bytes per second that each broker sends, and receives, of the replicas that the balancer moves. A rate that "
        "was set by hand, for a broker or for all, is used instead.",
        Range(1),
        dynamic=True,
    ),
    Setting(
        "auto.balance.partitions.at.once",
        INT,
        "10",
        "Partitions in a batch of the balancer: the next batch begins when these have been moved.",
        Range(1, 100),
        dynamic=True,
    ),
    Setting(
        "auto.balance.disk.limit.percentage",
        INT,
        "85",
        "The balancer moves nothing to a broker whose disks would be fuller than this.",
        Range(1, 100),
        dynamic=True,
    ),
    Setting(
        "auto.balance.excluded.brokers",
        LIST,
        "",
        "The ids of brokers to which the balancer moves nothing. pybroker brokers drain, retire and replace add the "
        "broker that they empty, pybroker brokers admit takes it out again.",
        Shape("broker ids, separated by commas", check_ids),
        dynamic=True,
    ),
    Setting(
        "auto.balance.note",
        STRING,
        "",
        "The moves that the balancer has under way, and its throttle, as the default of all brokers, so that the next "
        "controller can end them. No broker but the controller's acts by it.",
        dynamic=True,
    ),
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "Bytes per second that this broker sends to followers outside the ISR, for partitions that it leads and that "
        "are listed in leader.replication.throttled.replicas of their topics.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "Bytes per second that this broker fetches of partitions in which it is behind its leader, and that are listed "
        "in follower.replication.throttled.replicas of their topics.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        str(LONG_MAX),
        "Bytes per second that replicas are copied at from one log dir of this broker to another, all together.",
        Range(0),
        dynamic=True,
    ),
    Setting(
        "num.replica.alter.log.dirs.threads",
        INT,
        None,
        "Replicas that are copied from one log dir to another at the same time; not set: as many as there are log "
        "dirs.",
        Range(1),
    ),
    Setting(
        "replica.fetch.backoff.ms",
        INT,
        "1000",
        "How long a follower waits after an error before it fetches from its leader again.",
        Range(0, INT_MAX),
    ),
)
