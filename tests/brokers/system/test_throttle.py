"""Throttled replication (KIP-73): a returning broker copies at the set rate, and rejoins the ISR when it can."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.brokers.kit import QUIET, Cluster
from tests.harness import until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]

RATE = 100_000
RECORDS, VALUE = 3000, bytes(1000)
LEADER, FOLLOWER = 1, 3


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    """A cluster whose fetches are small, so that one over the quota makes no difference."""
    with Cluster(tmp_path, store, replica_fetch_max_bytes=RATE // 4) as running:
        yield running


def say(cluster: Cluster, kind: ResourceType, of: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, of, incremental_configs=[entry])
    cluster.admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.parametrize(("role", "broker"), [("leader", LEADER), ("follower", FOLLOWER)])
def test_who_comes_back_copies_no_faster_than_it_may(cluster: Cluster, role: str, broker: int) -> None:
    """The rate holds until it is raised, at once. Bytes copied while in the ISR, and of other topics, do not count."""
    throttled, free = (
        cluster.create(name, replicas=[[LEADER, FOLLOWER]], min_insync_replicas="1") for name in ("throttled", "free")
    )
    say(cluster, ResourceType.TOPIC, throttled, f"{role}.replication.throttled.replicas", f"0:{LEADER},0:{FOLLOWER}")
    say(cluster, ResourceType.BROKER, str(broker), f"{role}.replication.throttled.rate", str(RATE))
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET})

    def write() -> None:
        for number in range(RECORDS):
            for topic in (throttled, free):
                producer.produce(topic, VALUE, partition=0)
            producer.poll(0)
            if number % 100 == 0:
                producer.flush(20)  # for small batches
        assert producer.flush(20) == 0

    write()
    cluster.brokers[FOLLOWER].stop()
    log = cluster.brokers[FOLLOWER].partition_dir(throttled, 0) / f"{0:020}.log"
    before = log.stat().st_size

    def copied() -> int:
        return log.stat().st_size - before

    write()
    began = time.monotonic()
    cluster.start(FOLLOWER)
    cluster.until_in_sync(free, size=2)
    until("it copies", lambda: copied() > RATE)
    assert copied() < RATE * (time.monotonic() - began + 2) < RECORDS * len(VALUE)
    assert cluster.partition(throttled)[1] == [LEADER]
    say(cluster, ResourceType.BROKER, str(broker), f"{role}.replication.throttled.rate", str(1 << 40))
    cluster.until_in_sync(throttled, size=2)
