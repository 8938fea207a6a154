"""Three brokers in the process of a test: replicated, killed one by one, in sync again, and gone without a trace."""

from __future__ import annotations

import os
import threading
import time

import confluent_kafka as ck
import pytest

import pybroker.testing
from pybroker.testing import ClusterHandle

START_S_MAX = 1.5


def write(cluster: ClusterHandle, topic: str, count: int) -> dict[int, bytes]:
    """{offset: value} as they were acknowledged by all in-sync replicas."""
    found: dict[int, bytes] = {}
    failed: list[str] = []

    def told(error: ck.KafkaError | None, message: ck.Message) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            found[message.offset()] = message.value()

    producer = ck.Producer(cluster.confluent_config(acks="all", enable_idempotence=True))
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=told)
    assert producer.flush(30) == 0
    assert not failed
    return found


def read(cluster: ClusterHandle, topic: str, count: int) -> dict[int, bytes]:
    consumer = ck.Consumer(cluster.confluent_config(group_id="readers"))
    consumer.subscribe([topic])
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found.update((each.offset(), each.value()) for each in consumer.consume(1000, 0.2) if each.error() is None)
    consumer.close()
    return found


def test_a_broker_dies(pybroker_cluster: ClusterHandle) -> None:
    """The page of docs/testing.md: what is written while a leader is dead is there, and so is what was before."""
    topic = pybroker_cluster.create_topic("orders", partitions=3)
    before = write(pybroker_cluster, topic, 100)
    leader = pybroker_cluster.leader(topic)
    pybroker_cluster.kill(leader)
    after = write(pybroker_cluster, topic, 100)
    assert pybroker_cluster.leader(topic) not in (-1, leader)
    assert len(pybroker_cluster.in_sync(topic)) == 2
    pybroker_cluster.start()
    pybroker_cluster.wait_in_sync(topic)
    assert pybroker_cluster.running == [1, 2, 3]
    assert read(pybroker_cluster, topic, 200) == before | after


def test_each_is_stopped_in_turn(pybroker_cluster: ClusterHandle) -> None:
    """A rolling restart: nobody notices."""
    topic = pybroker_cluster.create_topic("orders")
    written: dict[int, bytes] = {}
    for number in pybroker_cluster.brokers:
        pybroker_cluster.stop(number)
        written |= write(pybroker_cluster, topic, 10)
        pybroker_cluster.start(number)
        pybroker_cluster.wait_in_sync(topic)
    assert len(written) == 30
    assert read(pybroker_cluster, topic, 30) == written


def test_it_is_there_soon_and_gone_without_a_trace() -> None:
    threads = threading.active_count()
    began = time.monotonic()
    with pybroker.testing.cluster() as cluster:
        took_s = time.monotonic() - began
        directory = cluster._directory.path
        assert cluster.running == [1, 2, 3]
    assert took_s < START_S_MAX
    assert not os.path.exists(directory)
    cluster.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= threads


def test_sizes_and_settings() -> None:
    with pytest.raises(ValueError, match="at least one broker, not 0"):
        pybroker.testing.cluster(0)
    with pybroker.testing.cluster(1, settings={"num.partitions": 2}) as one:
        topic = one.create_topic("small")
        assert one.in_sync(topic) == [1]
    with pytest.raises(pybroker.testing.BrokerFailed, match="is not a setting"):
        pybroker.testing.cluster(1, settings={"no.such.setting": 1})
