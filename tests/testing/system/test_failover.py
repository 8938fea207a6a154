"""A user's failover test: an idempotent producer of confluent-kafka writes on while its leader is killed, frozen or cut
off, and every record that was acknowledged is read back once."""

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
    """Writes numbers into a topic on a thread of its own, and notes where each was acknowledged."""

    def __init__(self, cluster: ClusterHandle, topic: str) -> None:
        self.acked: dict[int, bytes] = {}
        self.failed: list[str] = []
        self.somewhere = 0
        """Acknowledged without an offset: librdkafka heard that a batch which it sent again was there already."""
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
        """Records that are written from now on are acknowledged."""
        wanted, deadline = self._told_of + 100 + more, time.monotonic() + ACKED_S_MAX
        while self._told_of < wanted:
            assert time.monotonic() < deadline, f"{self._told_of} of {wanted} after {ACKED_S_MAX} s"
            time.sleep(0.01)

    @property
    def _told_of(self) -> int:
        return len(self.acked) + self.somewhere

    def finish(self) -> None:
        """What is under way is acknowledged, too."""
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
    """Everything that was written is there once, in order, at the offset at which it was acknowledged."""
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
    """It reaches neither the others nor the store, and what clients send it waits; those go on when it learns, by the
    network that is back, that it leads no more."""
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
    """Until its session has ended, and then it goes on."""
    topic = cluster.create_topic("orders")
    leader = cluster.leader(topic)
    with Writer(cluster, topic) as writer:
        cluster.pause(leader)
        assert leader in cluster.running
        with pytest.raises(BrokerFailed, match=f"broker {leader} is paused, and stops only when it goes on"):
            cluster.stop(leader)
        cluster.wait_in_sync(topic)
        writer.until_acked()
        cluster.resume()
        cluster.wait_in_sync(topic)
        writer.until_acked()
        judge(cluster, topic, writer)


@pytest.mark.pybroker_cluster(1, store="memory")
def test_a_thread_is_not_frozen(pybroker_cluster: ClusterHandle) -> None:
    """A sentence says what does that."""
    with pytest.raises(ValueError, match="cannot be frozen: pause it with mode='subprocess', or cut it off"):
        pybroker_cluster.pause(1)


@TWO_KINDS
def test_a_follower_is_cut_from_its_leader(cluster: ClusterHandle) -> None:
    """It is out of the in-sync replicas, and in again once the network is back; nobody else leads meanwhile."""
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
    """What was led is led on, and acks=all goes on; a ZooKeeper is the test's to kill and to start."""
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
