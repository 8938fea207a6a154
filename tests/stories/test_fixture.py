"""The pytest fixtures as users have them: a broker or a cluster for each test, for the user's own clients."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer

from pybroker.testing import BrokerHandle, ClusterHandle
from tests.testing.kit import read, send


def test_a_real_broker(pybroker: BrokerHandle) -> None:
    """The service under test and the test read each other's records, before and after a kill."""
    pybroker.create_topic("orders")
    pybroker.produce("orders", "14", key="ann")
    consumer = Consumer(pybroker.confluent_config("pricing"))
    consumer.subscribe(["orders"])
    assert read(consumer, 1) == [b"14"]
    consumer.close()
    assert send(Producer(pybroker.confluent_config()), "prices", "42") == [None]
    pybroker.kill()
    pybroker.restart()
    assert [(record.offset, record.value) for record in pybroker.records("prices", count=1)] == [(0, b"42")]


def test_the_next_test_has_a_broker_of_its_own(pybroker: BrokerHandle) -> None:
    pybroker.produce("orders", "1")
    assert [record.value for record in pybroker.records("orders")] == [b"1"]


def test_faults_of_the_tests_choice(pybroker: BrokerHandle) -> None:
    """Two answers are lost, and an idempotent producer's record is still stored once."""
    pybroker.create_topic("payments")
    producer = Producer(pybroker.confluent_config(enable_idempotence=True, socket_timeout_ms=1000))
    with pybroker.faults.disconnect("Produce", times=2) as lost:
        assert send(producer, "payments", "100 to ann") == [None]
        assert lost.hits == 2
    assert [record.value for record in pybroker.records("payments")] == [b"100 to ann"]


def test_a_cluster(pybroker_cluster: ClusterHandle) -> None:
    """Three brokers, without Java: a leader is killed, the others go on, and all are in sync again."""
    topic = pybroker_cluster.create_topic("orders")
    pybroker_cluster.produce(topic, "before")
    leader = pybroker_cluster.leader(topic)
    pybroker_cluster.kill(leader)
    pybroker_cluster.produce(topic, "while it is dead")
    pybroker_cluster.start(leader)
    pybroker_cluster.wait_in_sync(topic)
    assert [record.value for record in pybroker_cluster.records(topic)] == [b"before", b"while it is dead"]
