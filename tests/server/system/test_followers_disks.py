"""A follower whose disk is full, failed or slow: the others go on, and it rejoins the ISR when it can."""

from __future__ import annotations

import errno
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest

import pybroker.testing
from pybroker.testing import ClusterHandle
from tests.harness import until

SLEEP_MS = 600
SETTINGS = {"replica.lag.time.max.ms": 2000, "num.network.threads": 1}


@pytest.fixture
def cluster() -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster(settings=SETTINGS) as cluster:
        yield cluster


def replicas_of(cluster: ClusterHandle, number: int) -> Any:
    """The replicas of a broker, which runs in this process."""
    life: Any = cluster._members.lives[number]
    return life._injector.broker.replicas


def core_of(cluster: ClusterHandle, number: int) -> Any:
    return replicas_of(cluster, number)._core


def follower(cluster: ClusterHandle, topic: str) -> int:
    return next(number for number in cluster.brokers if number != cluster.leader(topic))


def acked(cluster: ClusterHandle, topic: str, count: int = 1) -> None:
    """Produce this many records, each acknowledged by the whole ISR."""
    failed: list[Any] = []
    producer = ck.Producer(cluster.confluent_config(acks="all", enable_idempotence=True))
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=lambda e, m: failed.append(e) if e else None)
    assert producer.flush(20) == 0
    assert failed == []


def test_a_follower_without_space(cluster: ClusterHandle) -> None:
    """A follower without space leaves the ISR, and catches up without a restart when there is space again."""
    topic = cluster.create_topic("t")
    acked(cluster, topic)
    number = follower(cluster, topic)
    with cluster.faults(number).full_disk():
        acked(cluster, topic, 100)
        until("it is out of the ISR", lambda: number not in cluster.in_sync(topic))
        acked(cluster, topic, 100)
    cluster.wait_in_sync(topic)
    acked(cluster, topic)


def test_a_follower_whose_disk_fails(cluster: ClusterHandle) -> None:
    """A follower whose append gets EIO leaves the ISR, and partitions that it leads get other leaders."""
    topic = cluster.create_topic("t", partitions=3)
    acked(cluster, topic)
    number = follower(cluster, topic)
    core_of(cluster, number).arm("segment.write", "errno", errno.EIO)
    acked(cluster, topic, 10)
    until("it is out of the ISR", lambda: number not in cluster.in_sync(topic))
    until("it leads nothing", lambda: all(cluster.leader(topic, index) not in (number, -1) for index in range(3)))
    acked(cluster, topic, 100)


def test_a_follower_whose_disk_is_slow(cluster: ClusterHandle) -> None:
    """The fetcher thread waits for a slow disk once; then other threads append to that log, and other logs go on."""
    slow, quick = cluster.create_topic("slow"), cluster.create_topic("quick")
    acked(cluster, slow)
    acked(cluster, quick)
    number = next(each for each in cluster.brokers if each not in (cluster.leader(slow), cluster.leader(quick)))
    log = replicas_of(cluster, number).get(slow, 0).log
    stop = threading.Event()

    def write() -> None:
        producer = ck.Producer(cluster.confluent_config(acks=1))
        while not stop.wait(0.01):
            producer.produce(slow, b"x", partition=0)
            producer.poll(0)
        producer.flush(20)

    writing = threading.Thread(target=write)
    core_of(cluster, number).arm("segment.write", "sleep", SLEEP_MS, times=1_000_000, under="slow")
    try:
        writing.start()
        until("its disk is known to be slow", lambda: log.slow_appends)
        producer = ck.Producer(cluster.confluent_config(acks="all", linger_ms=0))
        producer.produce(quick, b"x", partition=0)  # the first record waits at the slow disk, for less than the max lag
        assert producer.flush(20) == 0
        cluster.wait_in_sync(quick)
        end, took_s = log.log_end_offset, list[float]()
        while log.log_end_offset == end or len(took_s) < 50:  # while it is appended to
            began_s = time.monotonic()
            producer.produce(quick, b"x", partition=0)
            assert producer.flush(20) == 0
            took_s.append(time.monotonic() - began_s)
            assert number in cluster.in_sync(quick)
            time.sleep(0.02)
        assert statistics.median(took_s) < SLEEP_MS / 2000, sorted(took_s)[-5:]
    finally:
        core_of(cluster, number).disarm()
        stop.set()
        writing.join()
    cluster.wait_in_sync(slow)
    acked(cluster, slow, 10)
