"""Transactions of each client: what is committed is read once, what is aborted is not, offsets go with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka
import confluent_kafka as ck
import kafka
import pytest

from tests.clients.adapters.java import JVMS, Handle, JavaProducer
from tests.clients.adapters.neutral import Record
from tests.harness import Server
from tests.java.driver import Driver

ROUNDS, RECORDS = 4, 5
WANTED = [f"{number} {index}" for number in range(0, ROUNDS, 2) for index in range(RECORDS)]
"""The values of every second transaction; the others are aborted."""


def read_committed(server: Server, topic: str) -> list[str]:
    """The values that librdkafka's consumer reads with read_committed, up to the end."""
    consumer = ck.Consumer({
        "bootstrap.servers": server.bootstrap, "group.id": f"of {topic}", "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0,
    })  # fmt: skip
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        found.append(message.value().decode())
    consumer.close()
    assert message is not None, "no transaction is left open"
    return found


def test_confluent(target: Server, topic: str) -> None:
    producer = ck.Producer({"bootstrap.servers": target.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for number in range(ROUNDS):
        producer.begin_transaction()
        for index in range(RECORDS):
            producer.produce(topic, f"{number} {index}".encode(), partition=0)
        producer.flush(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)
    assert read_committed(target, topic) == WANTED


def test_offsets_of_confluent(target: Server, topic: str) -> None:
    """A consumer's offsets are committed with what was made of its records, and dropped with an abort."""
    how = {"bootstrap.servers": target.bootstrap, "log_level": 0}
    plain = ck.Producer(how)
    for index in range(RECORDS):
        plain.produce(topic, b"%d" % index, partition=0)
    plain.flush(60)
    consumer = ck.Consumer({**how, "group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    got = 0
    while got < RECORDS:
        got += len(consumer.consume(RECORDS - got, 1))
    producer = ck.Producer({**how, "transactional.id": topic})
    producer.init_transactions(60)
    for commit in (False, True):
        producer.begin_transaction()
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), group, 60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
        [found] = consumer.committed([ck.TopicPartition(topic, 0)], timeout=60)
        assert found.offset == (RECORDS if commit else ck.OFFSET_INVALID)
    consumer.close()


def test_a_second_client_fences_the_first(target: Server, topic: str) -> None:
    how = {"bootstrap.servers": target.bootstrap, "transactional.id": topic, "log_level": 0}
    first = ck.Producer(how)
    first.init_transactions(60)
    first.begin_transaction()
    first.produce(topic, b"zombie", partition=0)
    first.flush(60)
    second = ck.Producer(how)
    second.init_transactions(60)
    with pytest.raises(ck.KafkaException) as caught:
        first.commit_transaction(60)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"alive", partition=0)
    second.commit_transaction(60)
    assert read_committed(target, topic) == ["alive"]


def test_kafka_python(target: Server, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=topic)
    producer.init_transactions()
    for number in range(ROUNDS):
        producer.begin_transaction()
        sent = [producer.send(topic, f"{number} {index}".encode(), partition=0) for index in range(RECORDS)]
        for each in sent:
            each.get(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    producer.close()
    assert read_committed(target, topic) == WANTED


async def test_aiokafka(target: Server, topic: str) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=target.bootstrap, transactional_id=topic)
    await producer.start()
    for number in range(ROUNDS):
        await producer.begin_transaction()
        for index in range(RECORDS):
            await producer.send_and_wait(topic, f"{number} {index}".encode(), partition=0)
        await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
    await producer.stop()
    assert await asyncio.to_thread(read_committed, target, topic) == WANTED


@pytest.mark.parametrize("version", [pytest.param(version, marks=marks) for version, marks in JVMS.items()])
def test_java(target: Server, topic: str, java_driver: Callable[[str], Driver], version: str) -> None:
    config = {"bootstrap.servers": target.bootstrap, "transactional.id": topic}
    handle = Handle(java_driver(version), "open_producer", config=config)
    handle.ask("init_transactions", timeout_s=90)
    producer = JavaProducer(handle)
    for number in range(ROUNDS):
        handle.ask("begin_transaction")
        sent = [producer.send(topic, Record(f"{number} {index}".encode())) for index in range(RECORDS)]
        for each in sent:
            each.result(60)
        handle.ask("abort_transaction" if number % 2 else "commit_transaction", timeout_s=90)
    handle.close()
    assert read_committed(target, topic) == WANTED
