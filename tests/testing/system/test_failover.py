"""A user's failover test: an idempotent producer of confluent-kafka writes while its leader is killed, paused or cut
off, and every acknowledged record is read once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message, Producer

import pybroker.testing
from pybroker.testing import BrokerFailed, ClusterHandle
from tests.testing.kit import KINDS

ACKED_S_MAX = 40.0
SETTINGS = {"zookeeper.session.timeout.ms": 2000, "replica.lag.time.max.ms": 1500}

class Writer:
    """A thread that writes numbers into a topic, and notes the offset of each acknowledgement."""

    def __init__(self, cluster: ClusterHandle, topic: str) -> None:
        self.acked: dict[int, bytes] = {}
        self.failed: list[str] = []
        self.somewhere = 0
        """Records acknowledged without an offset: librdkafka had resent a batch that was already there."""
        self._topic = topic
        self._producer = Producer(
            cluster.confluent_config(
                acks="all", enable_idempotence=True, socket_timeout_ms=1000, linger_ms=0, log_level=0
            )
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        self.until_acked()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


    def _write(self) -> None:
        number = 0
        while not self._over.is_set():
            if len(self._producer) < 100:
                self._producer.produce(self._topic, b"%d" % number, on_delivery=self._told)
                number += 1
            self._producer.poll(0.001)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        elif message.offset() is None or message.offset() < 0:
            self.somewhere += 1
        else:
            self.acked[message.offset()] = message.value()

    def until_acked(self, more: int = 50) -> None:
        """Wait until records that are written from now on are acknowledged."""
        wanted, deadline = self._told_of + 100 + more, time.monotonic() + ACKED_S_MAX
        while self._told_of < wanted:
            assert time.monotonic() < deadline, f"{self._told_of} of {wanted} after {ACKED_S_MAX} s"
            time.sleep(0.01)

    @property
    def _told_of(self) -> int:
        return len(self.acked) + self.somewhere

    def finish(self) -> None:
        """Stop, and wait for the acknowledgement of records in flight."""
        self._over.set()
        self._thread.join()
        assert self._producer.flush(ACKED_S_MAX) == 0
        assert not self.failed


@pytest.fixture(params=KINDS, ids=str)
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster(settings=SETTINGS, **request.param) as cluster:
        yield cluster


TWO_KINDS = pytest.mark.parametrize("cluster", [KINDS[0], KINDS[2]], ids=str, indirect=True)


def judge(cluster: ClusterHandle, topic: str, writer: Writer, *others: bytes) -> None:
    """Check that every record is there once, in order, at its acknowledged offset."""
    writer.finish()
    found = {record.offset: record.value for record in cluster.records(topic)}
    assert [value for value in found.values() if value in others] == list(others)
    mine = {offset: value for offset, value in found.items() if value not in others}
    assert list(mine.values()) == [b"%d" % number for number in range(len(mine))]
    assert mine.items() >= writer.acked.items()
    assert len(mine) == len(writer.acked) + writer.somewhere


def test_a_leader_is_killed(cluster: ClusterHandle) -> None:
    topic = cluster.create_topic("orders")
    with Writer(cluster, topic) as writer:
        leader = cluster.leader(topic)
        cluster.kill(leader)
        writer.until_acked()
        assert cluster.leader(topic) not in (-1, leader)
        cluster.start(leader)
        cluster.wait_in_sync(topic)
        writer.until_acked()
        judge(cluster, topic, writer)


def test_a_leader_is_cut_off(cluster: ClusterHandle) -> None:
    """A leader that is cut off reaches neither the other brokers nor the store, and its clients' requests wait. They
    continue when the network is back and it learns that it no longer leads."""
    topic = cluster.create_topic("orders")
    with Writer(cluster, topic) as writer:
        leader = cluster.leader(topic)
        cluster.cut_off(leader)
        assert leader in cluster.running
        cluster.wait_in_sync(topic)
        assert cluster.leader(topic) not in (-1, leader)
        assert leader not in cluster.in_sync(topic)
        cluster.produce(topic, "by another producer")
        cluster.heal()
        cluster.wait_in_sync(topic)
        writer.until_acked()
        judge(cluster, topic, writer, b"by another producer")


@pytest.mark.parametrize("cluster", [KINDS[2]], ids=str, indirect=True)
def test_a_leader_is_frozen(cluster: ClusterHandle) -> None:
    """A leader is paused until its session has expired, and then goes on."""
    topic = cluster.create_topic("orders")
    leader = cluster.leader(topic)
    with Writer(cluster, topic) as writer:
        cluster.pause(leader)
        assert leader in cluster.running
        with pytest.raises(BrokerFailed, match=f"broker {leader} is paused and cannot stop cleanly"):
            cluster.stop(leader)
        cluster.wait_in_sync(topic)
        writer.until_acked()
        cluster.resume()
        cluster.wait_in_sync(topic)
        writer.until_acked()
        judge(cluster, topic, writer)


@pytest.mark.pybroker_cluster(1, store="memory")
def test_a_thread_is_not_frozen(pybroker_cluster: ClusterHandle) -> None:
    """A broker in a thread cannot be paused, and the error names the alternatives."""
    with pytest.raises(ValueError, match="cannot be frozen: pause it with mode='subprocess', or cut it off"):
        pybroker_cluster.pause(1)


@TWO_KINDS
def test_a_follower_is_cut_from_its_leader(cluster: ClusterHandle) -> None:
    """A follower that is cut from its leader leaves the in-sync replicas, and joins them again with the network; the
    leader stays."""
    topic = cluster.create_topic("orders")
    leader = cluster.leader(topic)
    follower = next(number for number in cluster.brokers if number not in (leader, cluster.controller))
    cluster.cut_off(follower, leader)
    cluster.produce(topic, "a")
    cluster.wait_in_sync(topic)
    assert follower not in cluster.in_sync(topic)
    cluster.heal(leader)
    cluster.wait_in_sync(topic)
    assert follower in cluster.in_sync(topic)
    assert cluster.leader(topic) == leader
    assert [record.value for record in cluster.records(topic)] == [b"a"]


@TWO_KINDS
def test_the_store_is_away(cluster: ClusterHandle) -> None:
    """While the store is down, leaders go on and acks=all works; a test can kill and start the ZooKeeper."""
    topic = cluster.create_topic("orders")
    with Writer(cluster, topic) as writer:
        if cluster.zookeeper is None:
            for number in cluster.brokers:
                cluster.cut_off(number, "store")
        else:
            cluster.zookeeper.kill()
        writer.until_acked()
        if cluster.zookeeper is None:
            cluster.heal()
        else:
            cluster.zookeeper.start()
        cluster.wait_in_sync(topic)
        writer.until_acked()
        judge(cluster, topic, writer)
