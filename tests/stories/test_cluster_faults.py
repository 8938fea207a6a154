"""A part of a cluster fails, row by row of "What happens when" in docs/cluster.md; the brokers are in this process."""

from __future__ import annotations

import confluent_kafka as ck
import pytest

from pybroker.testing import ClusterHandle
from tests.harness import until
from tests.testing.kit import read, send
from tests.wire import Wire, batch

QUICK = {"zookeeper.session.timeout.ms": 1500, "replica.lag.time.max.ms": 1000, "offsets.topic.num.partitions": 1}
pytestmark = [pytest.mark.pybroker_cluster(settings=QUICK)]
ALONE = batch([b"alone"])
REFUSED = ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")


def values(cluster: ClusterHandle, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in cluster.records(topic)]


def writer(cluster: ClusterHandle, **config: object) -> ck.Producer:
    return ck.Producer(cluster.confluent_config(acks="all", enable_idempotence=True, socket_timeout_ms=1000, **config))


def impatient(cluster: ClusterHandle) -> ck.Producer:
    """A producer that reports the first refusal."""
    return ck.Producer(cluster.confluent_config(acks="all", retries=0, message_timeout_ms=20_000))


def test_too_few_in_sync(pybroker_cluster: ClusterHandle) -> None:
    """Below min.insync.replicas acks=all is refused and reads go on. With the replicas back, so are writes."""
    topic = pybroker_cluster.create_topic("orders")
    assert send(writer(pybroker_cluster), topic, "before") == [None]
    others = [number for number in pybroker_cluster.brokers if number != pybroker_cluster.leader(topic)]
    pybroker_cluster.kill(*others)
    until("the leader is alone", lambda: len(pybroker_cluster.in_sync(topic)) == 1)
    assert send(impatient(pybroker_cluster), topic, "no")[0] in REFUSED
    consumer = ck.Consumer({**pybroker_cluster.confluent_config("readers"), "enable.auto.commit": False})
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    assert read(consumer, 1) == [b"before"]
    consumer.close()
    pybroker_cluster.start()
    pybroker_cluster.wait_in_sync(topic)
    assert send(writer(pybroker_cluster), topic, "after") == [None]
    assert values(pybroker_cluster) == [b"before", b"after"]


def test_the_controller_dies(pybroker_cluster: ClusterHandle) -> None:
    """Another controller is elected, and elects a leader when the next leader dies."""
    topic = pybroker_cluster.create_topic("orders")
    producer = writer(pybroker_cluster)
    assert send(producer, topic, "1") == [None]
    first = pybroker_cluster.controller
    pybroker_cluster.kill(first)
    until("another controls", lambda: pybroker_cluster.controller not in (-1, first))
    assert send(producer, topic, "2") == [None]
    pybroker_cluster.start()
    pybroker_cluster.wait_in_sync(topic)
    pybroker_cluster.kill(pybroker_cluster.leader(topic))
    assert send(producer, topic, "3") == [None]
    assert values(pybroker_cluster) == [b"1", b"2", b"3"]


def test_a_follower_lags(pybroker_cluster: ClusterHandle) -> None:
    """The follower leaves the ISR, acks=all no longer waits for it, and it rejoins the ISR once it has caught up."""
    topic = pybroker_cluster.create_topic("orders")
    follower = next(number for number in pybroker_cluster.brokers if number != pybroker_cluster.leader(topic))
    pybroker_cluster.cut_off(follower)
    assert send(writer(pybroker_cluster), topic, "two are enough") == [None]
    until("it has left", lambda: follower not in pybroker_cluster.in_sync(topic))
    pybroker_cluster.heal()
    pybroker_cluster.wait_in_sync(topic)
    assert pybroker_cluster.in_sync(topic) == [1, 2, 3]


def test_the_network_of_a_leader_is_cut(pybroker_cluster: ClusterHandle) -> None:
    """Another broker leads once the silent one's session expires. After the cut the old leader follows; all agree."""
    topic = pybroker_cluster.create_topic("orders")
    producer = writer(pybroker_cluster)
    assert send(producer, topic, "before") == [None]
    leader = pybroker_cluster.leader(topic)
    pybroker_cluster.cut_off(leader)
    until("another leads", lambda: pybroker_cluster.leader(topic) not in (-1, leader))
    pybroker_cluster.produce(topic, "at the next leader")
    pybroker_cluster.heal()
    pybroker_cluster.wait_in_sync(topic)
    assert send(producer, topic, "after") == [None]
    assert values(pybroker_cluster) == [b"before", b"at the next leader", b"after"]


def test_zookeeper_is_away(pybroker_cluster: ClusterHandle) -> None:
    """Leaders serve reads and acks=all. Once their lease has lapsed they refuse acks=1, until ZooKeeper is back."""
    topic = pybroker_cluster.create_topic("orders")
    producer = writer(pybroker_cluster)
    assert send(producer, topic, "before") == [None]
    _, port = pybroker_cluster.bootstrap_servers.split(",")[pybroker_cluster.leader(topic) - 1].split(":")
    for number in pybroker_cluster.brokers:
        pybroker_cluster.cut_off(number, "store")
    told: list[int] = []
    with Wire(int(port)) as wire:
        until("acks=1 is refused", lambda: told.append(wire.produce(topic, ALONE, acks=1).error) or told[-1])
    assert send(producer, topic, "by all") == [None]
    pybroker_cluster.heal()
    pybroker_cluster.wait_in_sync(topic)
    assert send(producer, topic, "after") == [None]
    taken = [value for value in values(pybroker_cluster) if value != b"alone"]
    assert taken == [b"before", b"by all", b"after"]
    assert values(pybroker_cluster).count(b"alone") == told.count(0)


def test_the_last_in_sync_replica_dies(pybroker_cluster: ClusterHandle) -> None:
    """The partition has no leader until that replica is back: no other one leads without all acknowledged records."""
    topic = pybroker_cluster.create_topic("orders", min_insync_replicas=1)
    leader = pybroker_cluster.leader(topic)
    others = [number for number in pybroker_cluster.brokers if number != leader]
    pybroker_cluster.kill(*others)
    until("it is alone", lambda: list(pybroker_cluster.in_sync(topic)) == [leader])
    assert send(writer(pybroker_cluster), topic, "here alone") == [None]
    pybroker_cluster.kill(leader)
    pybroker_cluster.start(*others)
    until("the others have a controller", lambda: pybroker_cluster.controller in others)
    until("nobody leads", lambda: pybroker_cluster.leader(topic) == -1)
    pybroker_cluster.start(leader)
    pybroker_cluster.wait_in_sync(topic)
    assert values(pybroker_cluster) == [b"here alone"]


def test_a_broker_stops(pybroker_cluster: ClusterHandle) -> None:
    """Others lead its partitions before it stops; the producer goes on, and so does the group that it coordinated."""
    topic = pybroker_cluster.create_topic("orders")
    producer = writer(pybroker_cluster)
    assert send(producer, topic, "1", "2") == [None, None]
    config = {**pybroker_cluster.confluent_config("readers"), "enable.auto.commit": False}
    consumer = ck.Consumer(config)
    consumer.subscribe([topic])
    assert read(consumer, 1)
    consumer.commit(offsets=[ck.TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    for led in ("__consumer_offsets", topic):
        leader = pybroker_cluster.leader(led)
        pybroker_cluster.stop(leader)
        assert pybroker_cluster.leader(led) not in (-1, leader)
        pybroker_cluster.start()
        pybroker_cluster.wait_in_sync()
    assert send(producer, topic, "3") == [None]
    consumer = ck.Consumer(config)
    consumer.subscribe([topic])
    assert read(consumer, 2) == [b"2", b"3"]
    consumer.close()


def test_the_coordinator_of_a_group_is_killed(pybroker_cluster: ClusterHandle) -> None:
    """Another broker coordinates the group and has the committed offset: no record is read again."""
    topic = pybroker_cluster.create_topic("orders")
    assert send(writer(pybroker_cluster), topic, "1", "2", "3") == [None] * 3
    consumer = ck.Consumer({
        **pybroker_cluster.confluent_config("readers"), "enable.auto.commit": False, "socket.timeout.ms": 1000
    })  # fmt: skip
    consumer.commit(offsets=[ck.TopicPartition(topic, 0, 2)], asynchronous=False)
    pybroker_cluster.kill(pybroker_cluster.leader("__consumer_offsets"))
    consumer.subscribe([topic])
    assert read(consumer, 1) == [b"3"]
    consumer.close()


def test_a_disk_of_the_leader_is_full(pybroker_cluster: ClusterHandle) -> None:
    """The controller moves leadership to a replica with room. The former leader rejoins the ISR once it has room."""
    topic = pybroker_cluster.create_topic("orders")
    leader = pybroker_cluster.leader(topic)
    producer = writer(pybroker_cluster)
    assert send(producer, topic, "before") == [None]
    with pybroker_cluster.faults(leader).full_disk():
        assert send(producer, topic, "while it is full") == [None]
        until("another leads", lambda: pybroker_cluster.leader(topic) not in (-1, leader))
    pybroker_cluster.wait_in_sync(topic)
    assert values(pybroker_cluster) == [b"before", b"while it is full"]
