"""Consumers start at an offset, a time or the end, and get new records at once."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.clients.adapters.neutral import Client, Record, Refused, take

OFFSET_OUT_OF_RANGE = 1
START_MS = int(time.time() * 1000) - 3_600_000
STEP_MS = 10


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    """A topic with 1,000 records in many batches, with timestamps 10 ms apart."""
    client.create_topic(topic)
    records = [Record(b"%d" % i, timestamp_ms=START_MS + STEP_MS * i) for i in range(1000)]
    assert client.send_all(topic, records, batch_bytes=512, idempotent=True) == list(range(1000))
    return topic


@pytest.mark.parametrize("start", [0, 1, 499, 777, 999])
def test_from_an_offset(client: Client, filled: str, start: int) -> None:
    """A consumer's first record has the requested offset, anywhere in a batch."""
    read = client.read(filled, 1000 - start, start)
    assert [r.offset for r in read] == list(range(start, 1000))
    assert [r.value for r in read] == [b"%d" % i for i in range(start, 1000)]


@pytest.mark.parametrize(
    ("asked_ms", "offset"),
    [
        (START_MS - 1_000, 0),
        (START_MS, 0),
        (START_MS + 1, 1),
        (START_MS + 500 * STEP_MS, 500),
        (START_MS + 500 * STEP_MS + 1, 501),
        (START_MS + 999 * STEP_MS, 999),
        (START_MS + 999 * STEP_MS + 1, None),
    ],
    ids=["long before", "the first", "between", "one in the middle", "after one", "the last", "after the last"],
)
def test_from_a_time(client: Client, filled: str, asked_ms: int, offset: int | None) -> None:
    """The offset for a time is that of the first record that is not older; none if all are older."""
    assert client.offset_at(filled, 0, asked_ms) == offset
    if offset is not None:
        first = client.read(filled, 1000 - offset, offset)[0]
        assert (first.offset, first.timestamp_ms) == (offset, START_MS + STEP_MS * offset)


def test_the_range_of_offsets(client: Client, filled: str) -> None:
    """A partition has a start and an end; a read at the end waits, and one past it is OFFSET_OUT_OF_RANGE."""
    assert client.offsets(filled) == (0, 1000)
    with client.consumer(filled, {0: 1000}, max_wait_ms=100) as consumer:
        assert consumer.poll(0.3) == []
    with client.consumer(filled, {0: 1001}, max_wait_ms=100) as consumer, pytest.raises(Refused) as refused:
        take(consumer, 1)
    if client.name != "confluent-kafka":  # librdkafka has a local code for it
        assert refused.value.code == OFFSET_OUT_OF_RANGE
    with client.consumer(filled, {0: 1001}, out_of_range="earliest", max_wait_ms=100) as consumer:
        assert take(consumer, 1000)[0].offset == 0


@pytest.mark.on_cluster
def test_deleted_records_are_gone(client: Client, filled: str) -> None:
    """DeleteRecords moves the partition's start: offsets before it are out of range, later ones are unchanged."""
    assert client.delete_records(filled, 0, 600) == 600
    assert client.offsets(filled) == (600, 1000)
    assert [r.offset for r in client.read(filled, 400, 600)] == list(range(600, 1000))
    with client.consumer(filled, {0: 0}, out_of_range="earliest") as consumer:
        assert take(consumer, 400)[0].offset == 600
    assert client.offset_at(filled, 0, START_MS) == 600
    with pytest.raises(Refused) as refused:
        client.delete_records(filled, 0, 1001)
    assert refused.value.code == OFFSET_OUT_OF_RANGE
    assert client.delete_records(filled, 0, 300) == 600  # the start never moves back
    assert client.delete_records(filled, 0, -1) == 1000  # all remaining records
    assert client.offsets(filled) == (1000, 1000)
    assert client.send_all(filled, [Record(b"next")]) == [1000]


def test_all_partitions_by_one_consumer(client: Client, topic: str) -> None:
    """One consumer of several partitions starts each at its own offset."""
    client.create_topic(topic, partitions=4)
    client.send_all(topic, [Record(b"%d" % i, partition=i % 4) for i in range(400)])
    with client.consumer(topic, {p: p * 10 for p in range(4)}) as consumer:
        read = take(consumer, 4 * 100 - 60)
    for p in range(4):
        assert [r.offset for r in read if r.partition == p] == list(range(p * 10, 100))


@pytest.mark.on_cluster
def test_a_waiting_consumer_is_woken_by_the_append(client: Client, topic: str) -> None:
    """A waiting consumer gets an appended record within milliseconds of a 6 s wait: the append completes the parked
    fetch."""
    client.create_topic(topic)
    took_s = []
    with client.consumer(topic, {0: 0}, max_wait_ms=6_000) as consumer, client.producer(linger_ms=0) as producer:
        for i in range(20):
            assert consumer.poll(0.05) == []  # the fetch is parked by now
            started = time.monotonic()
            producer.send(topic, Record(b"%d" % i))
            producer.flush()
            (record,) = take(consumer, 1)
            took_s.append(time.monotonic() - started)
            assert (record.offset, record.value) == (i, b"%d" % i)
    print(f"{client.name}: send to receipt ms", [round(s * 1000, 1) for s in took_s])
    assert max(took_s) < 5.0, "answered by its time-out, not by the append"
    assert statistics.median(took_s) < 0.1
