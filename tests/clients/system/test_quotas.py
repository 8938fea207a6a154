"""Clients of several libraries under quotas: each has its rate over ten seconds, and no other client is delayed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

import pybroker
from pybroker.client.admin import LATEST, Admin
from pybroker.security.quotas import CLIENT_ID, CONSUMER, PRODUCER
from tests.clients.adapters.kafka_python import kafka
from tests.harness import BrokerProcess

RATE = 1_000_000
SECONDS = 13.0
VALUE = bytes(1000)
RECORD_BYTES = len(VALUE) + 8  # in a batch
Work = Callable[[str, str, Callable[[], bool]], int]
"""Produce to a topic, or read it, at an address, while allowed; return the number of records read."""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    yield broker
    broker.close()


def librdkafka_writes(at: str, topic: str, goes_on: Callable[[], bool]) -> int:
    producer = ck.Producer({"bootstrap.servers": at, "client.id": topic, "linger.ms": 5, "batch.size": 32_000,
                            "queue.buffering.max.kbytes": 2000, "log_level": 0})  # fmt: skip
    while goes_on():
        with contextlib.suppress(BufferError):
            producer.produce(topic, VALUE)
            producer.poll(0)
            continue
        producer.poll(0.01)
    producer.flush()
    return 0


def kafka_python_writes(at: str, topic: str, goes_on: Callable[[], bool]) -> int:
    producer = kafka.KafkaProducer(
        bootstrap_servers=at, client_id=topic, batch_size=32_000, linger_ms=5, max_block_ms=2000
    )
    sent: deque[Any] = deque()
    while goes_on():
        sent.append(producer.send(topic, VALUE))
        if len(sent) > 500:
            sent.popleft().get(60)
    producer.close()
    return 0


def ours_writes(at: str, topic: str, goes_on: Callable[[], bool]) -> int:
    with pybroker.Producer(
        bootstrap_servers=at, client_id=topic, batch_size=32_000, buffer_memory=1 << 20
    ) as producer:
        while goes_on():
            producer.send(topic, VALUE)
    return 0


def librdkafka_reads(at: str, topic: str, goes_on: Callable[[], bool]) -> int:
    consumer = ck.Consumer({"bootstrap.servers": at, "client.id": topic, "group.id": topic, "log_level": 0,
                            "enable.auto.commit": False})  # fmt: skip
    consumer.assign([ck.TopicPartition("read", 0, 0)])
    count = 0
    while goes_on():
        count += sum(message.error() is None for message in consumer.consume(100, 0.05))
    consumer.close()
    return count


def kafka_python_reads(at: str, topic: str, goes_on: Callable[[], bool]) -> int:
    consumer = kafka.KafkaConsumer(bootstrap_servers=at, client_id=topic, enable_auto_commit=False)
    consumer.assign([kafka.TopicPartition("read", 0)])
    consumer.seek_to_beginning()
    count = 0
    while goes_on():
        count += sum(len(records) for records in consumer.poll(50, max_records=100).values())
    consumer.close()
    return count


WRITERS: dict[str, Work] = {"librdkafka": librdkafka_writes, "kafka-python": kafka_python_writes, "ours": ours_writes}
READERS: dict[str, Work] = {"librdkafka-reads": librdkafka_reads, "kafka-python-reads": kafka_python_reads}


def test_each_has_its_rate_and_nobody_waits_for_them(held: BrokerProcess) -> None:
    """Each client has its rate from its first request on: ten seconds' worth pass at once, and then none for ten
    seconds. Others do not wait."""
    works = WRITERS | READERS
    with Admin(held.bootstrap) as admin:
        for name in [*WRITERS, "read", "free"]:
            admin.create_topic(name)
        with pybroker.Producer(bootstrap_servers=held.bootstrap, client_id="free", batch_size=32_000) as filler:
            for _ in range(2 * int(RATE * SECONDS) // RECORD_BYTES):
                filler.send("read", VALUE)
        for name in works:
            admin.alter_quotas(((CLIENT_ID, name),), {PRODUCER if name in WRITERS else CONSUMER: RATE})
        began = time.monotonic()
        read: dict[str, tuple[int, float]] = {}

        def work(name: str) -> None:
            count = works[name](held.bootstrap, name, lambda: time.monotonic() < began + SECONDS)
            read[name] = count, time.monotonic() - began

        threads = [threading.Thread(target=work, args=(name,)) for name in works]
        for thread in threads:
            thread.start()
        waits = []
        with pybroker.Producer(bootstrap_servers=held.bootstrap, client_id="free", linger_ms=0) as free:
            while time.monotonic() < began + SECONDS - 0.2:
                sent = time.monotonic()
                free.send("free", b"x").result(5)
                waits.append(time.monotonic() - sent)
                time.sleep(0.01)
        while time.monotonic() < began + SECONDS:
            time.sleep(0.01)
        ends = admin.offsets(admin.topics(list(WRITERS)), LATEST)
        took_s = time.monotonic() - began
        for name in works:  # what is left goes at once
            admin.alter_quotas(((CLIENT_ID, name),), {PRODUCER if name in WRITERS else CONSUMER: None})
        for thread in threads:
            thread.join(60)
    assert sorted(waits)[len(waits) * 99 // 100] < 5, "a client waits while others are muted"
    counts = {name: (ends[pybroker.TopicPartition(name, 0)] or 0, took_s) for name in WRITERS}
    counts |= {name: read[name] for name in READERS}
    rates = {name: count * RECORD_BYTES / seconds for name, (count, seconds) in counts.items()}
    for rate in rates.values():  # a busy machine leaves them less time
        assert 0.3 * RATE <= rate <= 1.05 * RATE, rates
