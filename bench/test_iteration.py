"""Iteration, for and async for, beside poll and the other clients of Python: the same broker, records of 100 bytes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import confluent_kafka as ck
import numpy as np
import pytest

from bench.figures import show
from pybroker.client.admin import Admin
from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.producing.producer import Producer
from tests.clients.adapters.kafka_python import kafka
from tests.harness import BrokerProcess

VALUE = b"x" * 100
STORED = 4_000_000
READ_BY_CONFLUENT, READ_BY_AIOKAFKA, READ_BY_KAFKA_PYTHON = 600_000, 200_000, 100_000
ROUNDS = 5
TOPIC = "bench"

FOR_SHARE_MIN = 0.4
"""Of what poll() reads, with its default of 500 records a call."""
ASYNC_FOR_SHARE_MIN = 0.4
ASYNC_FOR_TIMES_MIN = 4.0
"""As fast as aiokafka's."""


@pytest.fixture(scope="module")
def bootstrap(shared_log_dir: Path) -> Iterator[str]:
    """A broker in a process of its own, with a topic full of records."""
    with BrokerProcess(shared_log_dir / "data") as started, Admin(started.bootstrap) as admin:
        admin.create_topic(TOPIC)
        with Producer(bootstrap_servers=started.bootstrap, acks=1) as producer:
            producer.send_columns(TOPIC, np.full(STORED, VALUE, "V100"))
        yield started.bootstrap


class Reading:
    """Counts records whose values are looked at, and the time that they took."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.count = self.size = 0
        self._start_s = time.perf_counter()

    def rate(self) -> float:
        took_s = time.perf_counter() - self._start_s
        assert self.size == self.count * len(VALUE) and self.count >= self.wanted
        return self.count / took_s


def polled(bootstrap: str) -> float:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek_to_beginning()
        reading = Reading(STORED)
        while reading.count < STORED:
            found = consumer.poll(1000)
            for record in found:
                reading.size += len(record.value or b"")
            reading.count += len(found)
        return reading.rate()


def iterated(bootstrap: str) -> float:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek_to_beginning()
        reading = Reading(STORED)
        for record in itertools.islice(consumer, STORED):
            reading.size += len(record.value or b"")
        reading.count = consumer.position((TOPIC, 0))
        return reading.rate()


async def polled_async(bootstrap: str) -> float:
    async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer:
        await consumer.assign([(TOPIC, 0)])
        await consumer.seek_to_beginning()
        reading = Reading(STORED)
        while reading.count < STORED:
            found = await consumer.poll(1000)
            for record in found:
                reading.size += len(record.value or b"")
            reading.count += len(found)
        return reading.rate()


async def iterated_async(bootstrap: str) -> float:
    async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer:
        await consumer.assign([(TOPIC, 0)])
        await consumer.seek_to_beginning()
        reading = Reading(STORED)
        async for record in consumer:
            reading.size += len(record.value or b"")
            if record.offset == STORED - 1:
                break
        reading.count = await consumer.position((TOPIC, 0))
        return reading.rate()


async def by_aiokafka(bootstrap: str) -> float:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        reading = Reading(READ_BY_AIOKAFKA)
        async for record in consumer:
            reading.size += len(record.value or b"")
            reading.count += 1
            if reading.count == READ_BY_AIOKAFKA:
                break
        return reading.rate()
    finally:
        await consumer.stop()


def by_kafka_python(bootstrap: str) -> float:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        partition = kafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        reading = Reading(READ_BY_KAFKA_PYTHON)
        for record in itertools.islice(consumer, READ_BY_KAFKA_PYTHON):
            reading.size += len(record.value)
            reading.count += 1
        return reading.rate()
    finally:
        consumer.close()


def by_confluent(bootstrap: str) -> float:
    """poll(), which returns one record, as confluent-kafka has no iteration."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "check.crcs": True}
    fast = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1}  # else it sleeps a second when it is ahead
    consumer = ck.Consumer({**settings, **fast})
    try:
        consumer.assign([ck.TopicPartition(TOPIC, 0, ck.OFFSET_BEGINNING)])
        reading = Reading(READ_BY_CONFLUENT)
        while reading.count < READ_BY_CONFLUENT:
            message = consumer.poll(1.0)
            if message is not None:
                reading.size += len(message.value())
                reading.count += 1
        return reading.rate()
    finally:
        consumer.close()


def best(loops: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The best rate of each, in turns: noise only ever takes away."""
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            rates[name].append(loop())
    return {name: max(found) for name, found in rates.items()}


def compare(what: str, found: dict[str, float], ours: str, peer: str, times_min: float) -> None:
    share, shown = found[ours] / found[peer], f"{found[ours] / 1e6:.2f} M records/s"
    beside, target = f"{peer} {found[peer] / 1e6:.2f} M", f"{share:.2f}x (>= {times_min})"
    show(what, "100 B", shown, beside, target, share >= times_min)


def test_iteration(bootstrap: str) -> None:
    """for beside poll, and beside confluent-kafka and kafka-python; async for beside await poll, and aiokafka."""
    found = best(
        {
            "poll": lambda: polled(bootstrap),
            "for": lambda: iterated(bootstrap),
            "await poll": lambda: asyncio.run(polled_async(bootstrap)),
            "async for": lambda: asyncio.run(iterated_async(bootstrap)),
            "confluent-kafka": lambda: by_confluent(bootstrap),
            "kafka-python": lambda: by_kafka_python(bootstrap),
            "aiokafka": lambda: asyncio.run(by_aiokafka(bootstrap)),
        }
    )
    compare("for record in consumer", found, "for", "poll", FOR_SHARE_MIN)
    for peer in ("confluent-kafka", "kafka-python"):
        compare("for record in consumer", found, "for", peer, 1.0)
    compare("async for record in consumer", found, "async for", "await poll", ASYNC_FOR_SHARE_MIN)
    compare("async for record in consumer", found, "async for", "aiokafka", ASYNC_FOR_TIMES_MIN)
