"""Consumers fetch from the replica in their rack, and go on when it dies (KIP-392)."""

from __future__ import annotations

import json
from collections.abc import Callable

import confluent_kafka as ck
import pytest

from tests.brokers.kit import QUIET, Cluster
from tests.brokers.system.test_failover import Writer
from tests.harness import until

pytestmark = [pytest.mark.java]


class Reader:
    """A consumer in a rack that counts the bytes each broker sent it."""

    def __init__(self, cluster: Cluster, topic: str, rack: str) -> None:
        self.found: dict[int, bytes] = {}
        self.received: dict[int, int] = {}
        self.consumer = ck.Consumer({
            "bootstrap.servers": cluster.bootstrap, "group.id": rack, "client.rack": rack, "enable.auto.commit": False,
            "statistics.interval.ms": 50, "stats_cb": self._count, "topic.metadata.refresh.interval.ms": 1000, **QUIET,
        })  # fmt: skip
        self.consumer.assign([ck.TopicPartition(topic, 0, 0)])

    def _count(self, text: str) -> None:
        self.received = {b["nodeid"]: b["req"].get("Fetch", 0) for b in json.loads(text)["brokers"].values()}

    def read(self, count: int) -> None:
        """Read until there are this many records."""

        def enough() -> bool:
            for message in self.consumer.consume(1000, 0.1):
                if message.error() is None:
                    self.found[message.offset()] = message.value()
            return len(self.found) >= count

        until(f"{count} records are read", enough, timeout_s=30)

    def fetches(self, broker: int) -> int:
        """The number of Fetch requests that the consumer sent to a broker."""
        seen = self.received
        until("it was counted", lambda: self.consumer.poll(0.02) or self.received is not seen)
        return self.received.get(broker, 0)


def test_a_consumer_reads_from_the_replica_in_its_rack(start_cluster: Callable[..., Cluster]) -> None:
    """The leader sends librdkafka to the replica in its rack, and librdkafka returns to a leader when that replica
    dies. A consumer in a rack without a replica, or in the leader's, stays with the leader."""
    cluster = start_cluster(
        broker_rack=lambda number: f"r{number}",
        replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector",
    )
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    writer = Writer(cluster, topic)
    writer.write(200)
    writer.settle()
    near, home, nowhere = (Reader(cluster, topic, rack) for rack in ("r3", "r1", "elsewhere"))
    for reader in (near, home, nowhere):
        reader.read(200)
    assert (near.fetches(3) > 0, home.fetches(3), nowhere.fetches(3)) == (True, 0, 0)
    before = near.fetches(1)
    for _ in range(3):
        writer.write(100)
        writer.settle()
        near.read(len(writer.acked))
    assert near.fetches(1) == before, "the leader sends it nothing"
    cluster.kill(3)
    writer.write(100)
    writer.settle()
    near.read(len(writer.acked))
    expected = {offset: value for (_, offset), value in writer.acked.items()}
    assert near.found == expected
    for reader in (near, home, nowhere):
        reader.consumer.close()
