"""Three brokers of one process in a storm: killed, stopped and started again, topics made and deleted, connections that
are reset, while a producer writes what all in-sync replicas are to have.

Roles change, logs are cut and partitions go while they are fetched. In `make test` for some seconds; tools/sanitize.py
runs it under the sanitizers for longer.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

import pybroker.testing
from pybroker.testing import ClusterHandle
from tests.storms.storm import Storm
from tests.storms.test_storms import SECONDS

KEPT, SYNCED, DOOMED = "kept", "synced", "doomed"
SETTINGS = {
    "num.network.threads": 2, "replica.lag.time.max.ms": 2000, "zookeeper.session.timeout.ms": 2000,
    "replica.fetch.wait.max.ms": 100, "offsets.topic.num.partitions": 1,
}  # fmt: skip
END_S_MAX = 120.0


class Writer(threading.Thread):
    """Writes numbers, each once; `acked` has those that all in-sync replicas have, by topic and partition."""

    def __init__(self, cluster: ClusterHandle, topics: dict[str, int]) -> None:
        super().__init__(name="writer", daemon=True)
        self.topics = topics
        self.ended = threading.Event()
        self.acked: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        config = cluster.confluent_config(acks="all", enable_idempotence=True, linger_ms=1)
        self.producer = ck.Producer(config)

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            for topic, partitions in self.topics.items():
                self.producer.produce(topic, b"%d" % number, partition=number % partitions, on_delivery=self._told)
            number += 1
            self.producer.poll(0.002)
        assert self.producer.flush(END_S_MAX) == 0

    def _told(self, problem: ck.KafkaError | None, message: ck.Message) -> None:
        if problem is None:
            at = message.topic(), message.partition()
            self.acked.setdefault(at, []).append((message.offset(), message.value()))


@pytest.fixture
def cluster() -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster(settings=SETTINGS) as cluster:
        yield cluster


def read(cluster: ClusterHandle, topic: str, partition: int, count: int) -> dict[int, bytes]:
    """{offset: value} from the start, until there are so many or time is over."""
    consumer = ck.Consumer(cluster.confluent_config(group_id="judge"))
    consumer.assign([ck.TopicPartition(topic, partition, 0)])
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + END_S_MAX
    while len(found) < count and time.monotonic() < deadline:
        found.update((each.offset(), each.value()) for each in consumer.consume(1000, 0.2) if each.error() is None)
    consumer.close()
    return found


@pytest.mark.timeout(900)
def test_a_cluster_in_a_storm(cluster: ClusterHandle) -> None:
    """What was acknowledged is read back at its offset, and every replica is in sync in the end."""
    rng = random.Random(1)
    cluster.create_topic(KEPT, 4, segment_bytes=20000, file_delete_delay_ms=0)
    cluster.create_topic(SYNCED, 2, flush_messages=1)
    admin = AdminClient(cluster.confluent_config())
    writer = Writer(cluster, {KEPT: 4, SYNCED: 2})
    port = int(cluster.bootstrap_servers.split(",")[0].rpartition(":")[2])
    storm = Storm(port, 1, KEPT)
    writer.start()
    storm.start()
    ends, rounds = time.monotonic() + SECONDS, 0
    while time.monotonic() < ends or rounds < 3:
        doomed = f"{DOOMED}-{rounds}"
        cluster.create_topic(doomed, 3)
        ck.Producer(cluster.confluent_config()).produce(doomed, b"x")
        victim = rng.choice(cluster.running)
        (cluster.kill if rounds % 2 else cluster.stop)(victim)
        admin.delete_topics([doomed])[doomed].result(END_S_MAX)  # while the others copy it
        cluster.start()
        cluster.wait_in_sync(KEPT, END_S_MAX)
        rounds += 1
    storm.end()
    writer.ended.set()
    writer.join(END_S_MAX)
    assert not writer.is_alive()
    assert len(writer.acked) == 6
    for topic in (KEPT, SYNCED):
        cluster.wait_in_sync(topic, END_S_MAX)
    for (topic, partition), acked in writer.acked.items():
        found = read(cluster, topic, partition, max(offset for offset, _ in acked) + 1)
        assert {offset: found.get(offset) for offset, _ in acked} == dict(acked), (topic, partition)
