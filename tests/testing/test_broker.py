"""The broker of a test, for authors of tests: with every client, in both modes, through stop and kill."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from pybroker.client.admin import Admin
from pybroker.errors import TOPIC_ALREADY_EXISTS, UNKNOWN_TOPIC_OR_PARTITION, KafkaError
from pybroker.testing import BrokerFailed, BrokerHandle, Mode, Record, async_broker
from pybroker.testing import broker as new_broker
from tests.testing.kit import KafkaConsumer, KafkaProducer, read, send


def test_what_is_produced_is_read(broker: BrokerHandle) -> None:
    """Produced records are read with their values, keys, headers, timestamps and partitions, and with offsets."""
    assert broker.create_topic("t", partitions=2, config={"retention.ms": 60_000}) == "t"
    full = Record(b"v", "k", (("h", b"1"), ("null", None)), 1_700_000_000_000, partition=1)
    stored = broker.produce("t", "text", None, full, "late", key="key")
    assert [(r.partition, r.offset) for r in stored] == [(0, 0), (0, 1), (1, 0), (0, 2)]
    first, empty, late, other = broker.records("t")
    assert (first.value, first.key, first.topic, first.offset) == (b"text", b"key", "t", 0)
    assert abs((first.timestamp_ms or 0) / 1000 - time.time()) < 60
    assert (empty.value, late.value) == (None, b"late")
    assert other == full._replace(key=b"k", topic="t", offset=0)
    assert broker.records("t", partition=1) == [other]


def test_records_waits_for_as_many_as_it_is_told(broker: BrokerHandle) -> None:
    """records() waits for a count, also in a topic that does not exist yet, but not for ever."""
    later = threading.Timer(0.3, broker.produce, ("t", "a", "b"))
    later.start()
    assert [r.value for r in broker.records("t", count=2)] == [b"a", b"b"]
    later.join()
    with pytest.raises(TimeoutError, match=r"t has 2 of 3 records after 0\.2 s"):
        broker.records("t", count=3, timeout_s=0.2)
    with pytest.raises(KafkaError) as unknown:
        broker.records("other")
    assert unknown.value.code == UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as known:
        broker.create_topic("t")
    assert known.value.code == TOPIC_ALREADY_EXISTS


def test_confluent_kafka(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """confluent-kafka produces to a topic, which that creates, and a group of one reads it."""
    assert send(Producer(broker.confluent_config(linger_ms=0)), "t", "a", "b") == [None, None]
    assert read(consume(broker, "t"), 2) == [b"a", b"b"]


def test_kafka_python(broker: BrokerHandle) -> None:
    """kafka-python produces to a topic, and a group of one reads it."""
    with contextlib.closing(KafkaProducer(**broker.kafka_python_config())) as producer:
        producer.send("t", b"a").get(30)
    with contextlib.closing(KafkaConsumer("t", **broker.kafka_python_config("g"))) as consumer:
        assert next(consumer).value == b"a"


async def test_aiokafka(mode: Mode) -> None:
    """aiokafka produces to a topic, and a group of one reads it, with an async broker."""
    async with async_broker(mode=mode) as broker:
        async with AIOKafkaProducer(**broker.aiokafka_config()) as producer:
            await producer.send_and_wait("t", b"a")
        await broker.restart()
        await broker.produce("t", "b")
        async with AIOKafkaConsumer("t", **broker.aiokafka_config("g")) as consumer:
            assert [(await consumer.getone()).value for _ in "ab"] == [b"a", b"b"]
        assert [r.value for r in await broker.records("t")] == [b"a", b"b"]


def test_acknowledged_records_survive_kill(broker: BrokerHandle) -> None:
    """Acknowledged records survive each kill() and are there after the next start, at the same address."""
    producer = Producer(broker.confluent_config())
    for life in range(3):
        assert send(producer, "t", *(f"{life}-{n}" for n in range(50))) == [None] * 50
        address = broker.bootstrap_servers
        broker.kill()
        assert not broker.running
        broker.restart()
        assert broker.bootstrap_servers == address
        assert len(broker.records("t")) == 50 * (life + 1)


def test_a_group_goes_on_where_it_was_after_a_kill(broker: BrokerHandle, consume: Callable[..., Consumer]) -> None:
    """A group resumes where it was after a kill: committed offsets survive, and a running consumer goes on by
    itself."""
    broker.produce("t", "a", "b")
    consumer = consume(broker, "t", enable_auto_commit=False)
    assert read(consumer, 2) == [b"a", b"b"]
    consumer.commit(asynchronous=False)
    broker.kill()
    broker.start()
    broker.produce("t", "c")
    assert read(consumer, 1) == [b"c"]


def test_the_port_is_held_while_the_broker_is_down(broker: BrokerHandle) -> None:
    """The port stays reserved while the broker is down: connections fail, and no other process can bind it."""
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((broker.host, broker.port))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((broker.host, broker.port))
    with pytest.raises(KafkaError, match="could not reach"):
        broker.records("t")
    broker.start()
    broker.start()  # a second call changes nothing
    broker.produce("t", "a")


def test_settings_reach_the_broker(mode: Mode) -> None:
    """Settings of the test reach the broker and win over the kit's."""
    settings = {"num.partitions": 3, "auto.create.topics.enable": False}
    with new_broker(mode=mode, settings=settings) as broker, Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(KafkaError):
            broker.produce("t", "a")
        admin.create_topic("t")
        assert len(admin.topics(["t"])[0].partitions) == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num.partition": 3}, "did you mean num.partitions"),
        ({"num.partitions": 0}, r"num.partitions = '0' \(settings of the test\)"),
    ],
)
def test_a_setting_that_is_wrong_is_said_in_a_sentence(mode: Mode, settings: dict[str, object], says: str) -> None:
    """A wrong setting is refused in one sentence, whether its name or its value is invalid."""
    with pytest.raises(BrokerFailed, match=says):
        BrokerHandle(mode=mode, settings=settings)
    with pytest.raises(ValueError, match="inprocess, subprocess"):
        BrokerHandle(mode="thread")  # type: ignore[arg-type]


def test_a_directory_of_the_test_stays(mode: Mode, tmp_path: Path) -> None:
    """A directory that the test chose outlives the broker, and the next broker finds its data."""
    with new_broker(mode=mode, data_dir=str(tmp_path)) as broker:
        broker.produce("t", "a")
    with new_broker(mode=mode, data_dir=str(tmp_path)) as broker:
        assert [r.value for r in broker.records("t")] == [b"a"]


def test_ten_brokers_at_once() -> None:
    """Ten brokers run in one process, independent of each other, and one can die without the rest."""
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(new_broker()) for _ in range(10)]
        producers = [Producer(broker.confluent_config()) for broker in brokers]
        for number, producer in enumerate(producers):
            assert send(producer, "t", str(number)) == [None]
        brokers[3].kill()
        for number, broker in enumerate(brokers):
            if number != 3:
                assert [r.value for r in broker.records("t")] == [str(number).encode()]
        clusters = set()
        for broker in brokers[:3]:
            with Admin(broker.bootstrap_servers) as admin:
                assert [topic.name for topic in admin.topics()] == ["t"]
                clusters.add(admin.cluster.id)
        assert len(clusters) == 3


def test_names_of_confluent_kafka_that_have_underscores(broker: BrokerHandle) -> None:
    """confluent-kafka's names with underscores stay as they are; all others get dots."""
    config = broker.confluent_config(log_level=0, error_cb=print, on_delivery=print, linger_ms=5)
    assert {"log_level", "error_cb", "on_delivery", "linger.ms"} < config.keys()
    Producer(config)
