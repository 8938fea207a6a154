"""The client compared with confluent-kafka and aiokafka: one broker, records of 100 bytes, one process, in turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import confluent_kafka as ck
import numpy as np
import pytest

from bench.figures import show
from bench.payloads import drop_cache
from pybroker.client.admin import Admin
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.producing.producer import Producer
from pybroker.model import TopicPartition
from tests.harness import BrokerProcess

VALUE = b"x" * 100
SENT = 1_000_000
BY_COLUMN = 8_000_000
READ = 4_000_000
READ_BY_CONFLUENT, READ_BY_AIOKAFKA = 600_000, 200_000
ROUNDS = 3
TOPIC = "bench"

SEND_SHARE_MIN = 1.2
COLUMNS_RATE_MIN = 8e6  # the rate that a broker stores on the other core
POLL_SHARE_MIN = 1.5
ARROW_RATE_MIN = 12e6


@pytest.fixture
def broker(log_dir: Path) -> Iterator[BrokerProcess]:
    """A broker in a process of its own."""
    with BrokerProcess(log_dir / "data") as started, Admin(started.bootstrap) as admin:
        admin.create_topic(TOPIC)
        yield started


@pytest.fixture
def bootstrap(broker: BrokerProcess) -> str:
    return broker.bootstrap


def best(broker: BrokerProcess, loops: dict[str, Callable[[], float]], *, empty: bool) -> dict[str, float]:
    """Return the best rate of each loop, in turns; noise only ever takes away. The disk and the cache are the same for
    all."""
    assert broker.process is not None
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            drop_cache(*([broker.process.pid] if empty else []))
            rates[name].append(loop())
            if empty:
                with Admin(broker.bootstrap) as admin:
                    admin.delete_records({TopicPartition(TOPIC, 0): -1})
    return {name: max(found) for name, found in rates.items()}


def rate(count: int, start_s: float) -> float:
    return count / (time.perf_counter() - start_s)


def theirs_sent(bootstrap: str) -> float:
    settings = {"bootstrap.servers": bootstrap, "acks": 1, "queue.buffering.max.messages": SENT + 1, "linger.ms": 5}
    producer = ck.Producer({**settings, "queue.buffering.max.kbytes": 1 << 20})
    produce, start_s = producer.produce, time.perf_counter()
    for n in range(SENT):
        produce(TOPIC, VALUE)
        if not n & 0xFFF:
            producer.poll(0)
    producer.flush()
    return rate(SENT, start_s)


def ours_sent(bootstrap: str) -> float:
    with Producer(bootstrap_servers=bootstrap, acks=1) as producer:
        send, start_s = producer.send, time.perf_counter()
        for _ in range(SENT):
            last = send(TOPIC, VALUE)
        producer.flush()
        assert last.result(0).offset >= SENT - 1
        return rate(SENT, start_s)


def ours_by_column(bootstrap: str) -> float:
    values = np.full(BY_COLUMN, VALUE, "V100")
    with Producer(bootstrap_servers=bootstrap, acks=1) as producer:
        start_s = time.perf_counter()
        last = producer.send_columns(TOPIC, values)[-1]
        producer.flush()
        made = rate(BY_COLUMN, start_s)
        assert last.exception(0) is None
        return made


def compare(
    what: str,
    payload: str,
    found: dict[str, float],
    *,
    peer: str = "confluent-kafka",
    share_min: float = 0,
    rate_min: float = 0,
) -> None:
    """Compare ours with theirs: require a ratio, or a rate."""
    share = found["ours"] / found[peer]
    target = f"(>= {share_min})" if share_min else f"of it, >= {rate_min / 1e6:.0f} M"
    show(
        what,
        payload,
        f"{found['ours'] / 1e6:.2f} M records/s",
        f"{peer} {found[peer] / 1e6:.2f} M",
        f"{share:.2f}x {target}",
        share >= share_min and found["ours"] >= rate_min,
    )


def test_send(broker: BrokerProcess, bootstrap: str) -> None:
    """One record a call, acks=1."""
    loops = {"confluent-kafka": lambda: theirs_sent(bootstrap), "ours": lambda: ours_sent(bootstrap)}
    compare("Producer.send", "100 B, acks=1", best(broker, loops, empty=True), share_min=SEND_SHARE_MIN)


def test_send_columns(broker: BrokerProcess, bootstrap: str) -> None:
    """By column, acks=1."""
    loops = {"confluent-kafka": lambda: theirs_sent(bootstrap), "ours": lambda: ours_by_column(bootstrap)}
    compare("Producer.send_columns", "100 B, acks=1", best(broker, loops, empty=True), rate_min=COLUMNS_RATE_MIN)


TEXT = [
    b"".join(b"%05d words and more " % (i * j * 7919 % 100_003) for j in range(1, 6))[:100] for i in range(1, 20_001)
]
"""Records of 100 bytes; LZ4 and zstd halve them or better."""


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_send_columns_compressed(broker: BrokerProcess, bootstrap: str, codec: str) -> None:
    """By column, compared with librdkafka and the same codec at its default level, acks=1."""
    values = np.array(TEXT * (SENT // len(TEXT)), "S100")

    def theirs() -> float:
        settings = {"bootstrap.servers": bootstrap, "acks": 1, "compression.type": codec, "linger.ms": 5}
        producer = ck.Producer({**settings, "queue.buffering.max.messages": SENT + 1})
        start_s = time.perf_counter()
        for n in range(SENT):
            producer.produce(TOPIC, TEXT[n % len(TEXT)])
            if not n & 0xFFF:
                producer.poll(0)
        producer.flush()
        return rate(SENT, start_s)

    def ours() -> float:
        with Producer(bootstrap_servers=bootstrap, acks=1, compression_type=codec) as producer:
            start_s = time.perf_counter()
            last = producer.send_columns(TOPIC, values)[-1]
            producer.flush()
            assert last.exception(0) is None
            return rate(SENT, start_s)

    found = best(broker, {"confluent-kafka": theirs, "ours": ours}, empty=True)
    compare(f"Producer.send_columns, {codec}", "100 B of text, acks=1", found, share_min=1)


def theirs_read(bootstrap: str) -> float:
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "check.crcs": True}
    fast = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1}  # else it sleeps a second when ahead
    consumer = ck.Consumer({**settings, **fast})
    consumer.assign([ck.TopicPartition(TOPIC, 0, ck.OFFSET_BEGINNING)])
    count, size, start_s = 0, 0, time.perf_counter()
    while count < READ_BY_CONFLUENT:
        for message in consumer.consume(10_000, 1.0):
            size += len(message.value())
            count += 1
    consumer.close()
    assert size == count * len(VALUE)
    return rate(count, start_s)


def read_by_aiokafka(bootstrap: str) -> float:
    async def read() -> float:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            count, size, start_s = 0, 0, time.perf_counter()
            while count < READ_BY_AIOKAFKA:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=10_000)).values():
                    size += sum(len(record.value or b"") for record in records)
                    count += len(records)
            assert size == count * len(VALUE)
            return rate(count, start_s)
        finally:
            await consumer.stop()

    return asyncio.run(read())


def reading(bootstrap: str, take: Callable[[Consumer], int]) -> float:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        start_s = time.perf_counter()
        consumer.assign([(TOPIC, 0)])
        consumer.seek_to_beginning()
        count = 0
        while count < READ:
            count += take(consumer)
        return rate(count, start_s)


def objects(consumer: Consumer) -> int:
    size, found = 0, consumer.poll(1000, 10_000)
    for record in found:
        size += len(record.value or b"")
    assert size == len(found) * len(VALUE)
    return len(found)


def test_poll(broker: BrokerProcess, bootstrap: str) -> None:
    """Each record becomes an object, whose value is read."""
    ours_by_column(bootstrap)
    loops: dict[str, Callable[[], float]] = {
        "confluent-kafka": lambda: theirs_read(bootstrap),
        "aiokafka": lambda: read_by_aiokafka(bootstrap),
        "ours": lambda: reading(bootstrap, objects),
    }
    found = best(broker, loops, empty=False)
    for peer in ("confluent-kafka", "aiokafka"):
        compare("Consumer.poll", "100 B", found, peer=peer, share_min=POLL_SHARE_MIN)


def test_poll_arrow_and_numpy(broker: BrokerProcess, bootstrap: str) -> None:
    """All columns, and the values alone."""
    ours_by_column(bootstrap)
    loops: dict[str, Callable[[], float]] = {
        "poll_arrow": lambda: reading(bootstrap, lambda c: c.poll_arrow(1000).num_rows),
        "poll_numpy": lambda: reading(bootstrap, lambda c: c.poll_numpy(1000).rows),
        "poll_arrow, values": lambda: reading(bootstrap, lambda c: c.poll_arrow(1000, columns=["value"]).num_rows),
    }
    found = best(broker, loops, empty=False)
    for name, made in found.items():
        met = made >= ARROW_RATE_MIN
        show(
            f"Consumer.{name}",
            "100 B",
            f"{made / 1e6:.2f} M records/s",
            "nobody",
            f">= {ARROW_RATE_MIN / 1e6:.0f} M",
            met,
        )
