"""A cluster of three brokers in one process survives a storm while a producer writes with acks=all.

Brokers are killed, stopped and started, topics created and deleted, connections reset. Roles change, logs are
truncated, and partitions are deleted while they are fetched. This runs for seconds; tools/sanitize.py runs it under the
sanitizers for longer.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

import pybroker.testing
from pybroker import errors
from pybroker.testing import ClusterHandle
from pybroker.testing.records import StoredRecord
from tests.asking import ask
from tests.storms.storm import Storm
from tests.storms.system.test_storms import SECONDS

KEPT, SYNCED, DOOMED = "kept", "synced", "doomed"
SETTINGS = {
    "num.network.threads": 2, "replica.lag.time.max.ms": 2000, "zookeeper.session.timeout.ms": 2000,
    "replica.fetch.wait.max.ms": 100, "offsets.topic.num.partitions": 1,
}  # fmt: skip
BATCH = 20
END_S_MAX = 120.0


class Writer(threading.Thread):
    """Writes each number once; `acked` has those that all in-sync replicas stored.

    It uses pybroker's own client, as threads of libraries built without a sanitizer would crash such a process.
    """

    def __init__(self, cluster: ClusterHandle, topics: dict[str, int]) -> None:
        super().__init__(name="writer", daemon=True)
        self.cluster = cluster
        self.places = [(topic, index) for topic, count in topics.items() for index in range(count)]
        self.ended = threading.Event()
        self.acked: list[StoredRecord] = []

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            topic, partition = self.places[number % len(self.places)]
            values = [f"{number}.{each}" for each in range(BATCH)]
            self.acked += self.cluster.produce(topic, *values, partition=partition)
            number += 1


@pytest.fixture
def cluster() -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster(settings=SETTINGS) as cluster:
        yield cluster


@pytest.mark.timeout(900)
def test_a_cluster_in_a_storm(cluster: ClusterHandle) -> None:
    """After a storm every acknowledged record is read back at its offset, and every replica gets in sync."""
    rng = random.Random(1)
    cluster.create_topic(KEPT, 4, segment_bytes=20000, file_delete_delay_ms=0)
    cluster.create_topic(SYNCED, 2, flush_messages=1)
    writer = Writer(cluster, {KEPT: 4, SYNCED: 2})
    ports = [int(address.rpartition(":")[2]) for address in cluster.bootstrap_servers.split(",")]
    storm = Storm(ports[0], 1, KEPT)
    writer.start()
    storm.start()
    ends, rounds = time.monotonic() + SECONDS, 0
    while time.monotonic() < ends or rounds < 3:
        doomed = f"{DOOMED}-{rounds}"
        cluster.create_topic(doomed, 3)
        cluster.produce(doomed, "x")
        victim = rng.choice(cluster.running)
        (cluster.kill if rounds % 2 else cluster.stop)(victim)
        told = ask(ports[cluster.running[0] - 1], "DeleteTopics", 5, topic_names=[doomed], timeout_ms=1000)
        assert told.responses[0].error_code in (errors.NONE, errors.REQUEST_TIMED_OUT)  # while the others copy it
        cluster.start()
        cluster.wait_in_sync(KEPT, END_S_MAX)
        rounds += 1
    storm.end()
    writer.ended.set()
    writer.join(END_S_MAX)
    assert not writer.is_alive()
    assert writer.acked
    for topic in (KEPT, SYNCED):
        cluster.wait_in_sync(topic, END_S_MAX)
        acked = {(r.partition, r.offset): r.value for r in writer.acked if r.topic == topic}
        found = {(r.partition, r.offset): r.value for r in cluster.records(topic, count=len(acked))}
        assert {at: found.get(at) for at in acked} == acked
