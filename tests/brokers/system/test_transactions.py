"""Transactions of a real client on three brokers, which are killed in the middle of them."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka as ck
import pytest

from pybroker.state_log.placement import partition_of
from tests.brokers.kit import QUIET, Cluster

pytestmark = [pytest.mark.java]

SETS = {"transaction_state_log_num_partitions": 2, "zookeeper_session_timeout_ms": 2000}
TX = "tx"
STATE = "__transaction_state"
RECORDS = 5
PARTITIONS = 3
SECONDS = 60


class Teller:
    """A transactional producer that remembers what became of each of its transactions."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.count = 0
        self.producer = self._new()

    def _new(self) -> ck.Producer:
        producer = ck.Producer({
            "bootstrap.servers": self.cluster.bootstrap, "transactional.id": TX, "transaction.timeout.ms": 60_000,
            "topic.metadata.refresh.interval.ms": 1000, "socket.timeout.ms": 10_000, **QUIET,
        })  # fmt: skip
        producer.init_transactions(SECONDS)
        return producer

    def begin(self) -> int:
        """Begin a transaction, and write to all partitions; return its number."""
        self.producer.begin_transaction()
        for index in range(RECORDS * PARTITIONS):
            self.producer.produce(self.topic, b"%d %d" % (self.count, index), partition=index % PARTITIONS)
        self.producer.flush(SECONDS)
        self.count += 1
        return self.count - 1

    def end(self, number: int, commit: bool = True) -> None:
        """End a transaction, as often as the client says that it may be tried again."""
        while True:
            try:
                (self.producer.commit_transaction if commit else self.producer.abort_transaction)(SECONDS)
                (self.committed if commit else self.aborted).add(number)
                return
            except ck.KafkaException as problem:
                error = problem.args[0]
                if error.txn_requires_abort():
                    commit = False
                elif not error.retriable():
                    raise

    def judge(self) -> None:
        """Read what is committed: all records of committed transactions, once, and none of the others."""
        consumer = ck.Consumer({
            "bootstrap.servers": self.cluster.bootstrap, "group.id": "judge", "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "enable.partition.eof": True, **QUIET,
        })  # fmt: skip
        consumer.assign([ck.TopicPartition(self.topic, index, 0) for index in range(PARTITIONS)])
        found: list[bytes] = []
        at_end: set[int] = set()
        while len(at_end) < PARTITIONS:
            message = consumer.poll(SECONDS)
            assert message is not None, "no transaction is left open"
            if message.error() is None:
                found.append(message.value())
            elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
        consumer.close()
        wanted = [b"%d %d" % (number, index) for number in self.committed for index in range(RECORDS * PARTITIONS)]
        assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("commit", [True, False])
def test_transactions_outlive_their_coordinator(start_cluster: Callable[..., Cluster], commit: bool) -> None:
    """Faults 11, 14 and 27: the coordinator is killed while a transaction is open, and again right after the client
    was answered that it is decided. All partitions show it as it was answered."""
    cluster = start_cluster(**SETS)
    teller = Teller(cluster, cluster.create("t", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]]))
    teller.end(teller.begin())
    for _ in range(2):
        open_ = teller.begin()
        victim = cluster.leader(STATE, partition_of(TX, 2))
        cluster.kill(victim)
        teller.end(open_, commit)
        cluster.start()
        decided = teller.begin()
        victim = cluster.leader(STATE, partition_of(TX, 2))
        teller.end(decided, commit)
        cluster.kill(victim)
        teller.end(teller.begin())
        cluster.start()
    teller.judge()


def test_transactions_outlive_the_leaders_of_their_partitions(start_cluster: Callable[..., Cluster]) -> None:
    """The leader of a partition is killed in the middle of a transaction: its markers go to the next one."""
    cluster = start_cluster(**SETS)
    teller = Teller(cluster, cluster.create("t", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]]))
    for number in range(4):
        open_ = teller.begin()
        victim = cluster.leader(teller.topic, number % PARTITIONS)
        cluster.kill(victim)
        teller.end(open_, commit=number % 2 == 0)
        cluster.start()
    teller.end(teller.begin())
    teller.judge()
