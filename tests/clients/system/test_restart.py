"""The broker dies and comes back between and during a client's calls: each acknowledged record is there once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.clients.adapters.neutral import CODECS, Client, Record, take
from tests.harness import Server, until
from tests.marks import long

START_MS = int(time.time() * 1000) - 60_000
"""A timestamp of today: when Kafka loads a snapshot, it drops a producer whose last record is a day old."""
Connect = Callable[[Server], Client]


def numbered(start: int, end: int) -> list[Record]:
    """Records with a number each, with keys and headers, a millisecond apart."""
    return [
        Record(b"%d" % i, b"key %d" % (i % 7), (("number", b"%d" % i),), START_MS + i, offset=i)
        for i in range(start, end)
    ]


def kill(server: Server) -> None:
    server.kill()


def stop(server: Server) -> None:
    server.stop()


@pytest.fixture(params=[kill, long(stop)], ids=["kill", "stop"])  # a kill needs more
def end(request: pytest.FixtureRequest) -> Callable[[Server], None]:
    """The broker's end: SIGKILL, or SIGTERM with a clean shutdown."""
    return request.param


def test_what_was_acknowledged_is_read_back_at_its_offset(
    mortal: Server, connect: Connect, topic: str, end: Callable[[Server], None]
) -> None:
    """Acknowledged records of every codec are at their offsets after a restart, found by offset and by time, and more
    can follow."""
    client = connect(mortal)
    client.create_topic(topic, partitions=2, config={"retention.ms": "-1"})
    for i, codec in enumerate(CODECS):
        assert client.send_all(topic, numbered(i * 100, i * 100 + 100), codec=codec) == list(
            range(i * 100, i * 100 + 100)
        )
    end(mortal)
    mortal.restart()
    assert client.read(topic, 500) == numbered(0, 500)
    assert client.read(topic, 123, 377) == numbered(377, 500)
    assert client.offset_at(topic, 0, START_MS + 250) == 250
    assert (client.offsets(topic, 0), client.offsets(topic, 1)) == ((0, 500), (0, 0))
    assert client.topic_config(topic)["retention.ms"] == "-1"
    assert client.send_all(topic, numbered(500, 600)) == list(range(500, 600))
    assert client.read(topic, 600) == numbered(0, 600)


@pytest.mark.parametrize("idempotent", [long(False), True], ids=["plain", "idempotent"])  # idempotence needs more
def test_a_producer_goes_on_over_the_kill(mortal: Server, connect: Connect, topic: str, idempotent: bool) -> None:
    """A producer goes on over the kill: records in flight, or sent while the broker is down, are acknowledged after its
    restart. Each is read at its acknowledged offset, and an idempotent producer's exactly once and in order."""
    client = connect(mortal)
    client.create_topic(topic)
    futures: list[Future[int]] = []
    with client.producer(idempotent=idempotent, batch_bytes=2048) as producer, ThreadPoolExecutor(1) as beside:

        def send(start: int, end: int) -> list[Future[int]]:
            return [producer.send(topic, r) for r in numbered(start, end)]

        for n in (0, 900):
            futures += send(n, n + 300)
            producer.flush()
            futures += send(n + 300, n + 600)
            until("some of these are on their way", futures[n + 300].done)
            mortal.kill()
            sending = beside.submit(send, n + 600, n + 900)  # aiokafka's send blocks while its buffer is full
            mortal.restart()
            futures += sending.result(30)
        producer.flush(60)
    offsets = [f.result(0) for f in futures]
    _, end = client.offsets(topic)
    read = client.read(topic, end)
    assert [r.offset for r in read] == list(range(end))
    assert [read[offset].value for offset in offsets] == [b"%d" % i for i in range(1800)]
    if idempotent:
        assert read == numbered(0, 1800)


@pytest.mark.on_cluster
def test_a_consumer_goes_on_over_the_restart(
    mortal: Server, connect: Connect, topic: str, end: Callable[[Server], None]
) -> None:
    """A consumer at offset 100 when the broker ended gets 100 next, and each record once."""
    client = connect(mortal)
    client.create_topic(topic)
    client.send_all(topic, numbered(0, 100))
    with client.consumer(topic, {0: 0}) as consumer:
        assert take(consumer, 100) == numbered(0, 100)
        end(mortal)
        mortal.restart()
        client.send_all(topic, numbered(100, 200))
        assert take(consumer, 100) == numbered(100, 200)


def test_deleted_records_and_topics_stay_deleted(
    mortal: Server, connect: Connect, topic: str, end: Callable[[Server], None]
) -> None:
    """Deleted records and topics stay deleted: a partition's start never goes back, and no record of a deleted topic
    returns."""
    if mortal.name != "pybroker" and end is kill:
        pytest.skip("Kafka writes its log starts once a minute: after a kill they do go back")
    client = connect(mortal)
    for name in (topic, topic + "-gone"):
        client.create_topic(name)
        client.send_all(name, numbered(0, 100))
    assert client.delete_records(topic, 0, 60) == 60
    client.delete_topic(topic + "-gone")
    until("the topic is gone", lambda: topic + "-gone" not in client.topics())
    end(mortal)
    mortal.restart()
    client = connect(mortal)  # kafka-python's admin client finds no node at its first call after a restart
    assert topic + "-gone" not in client.topics()
    assert client.offsets(topic) == (60, 100)
    assert client.read(topic, 40, 60) == numbered(60, 100)


def test_a_clean_stop_under_load_loses_nothing(mortal: Server, connect: Connect, topic: str) -> None:
    """A clean stop under load loses nothing: on SIGTERM during writes the broker ends with code 0, and every
    acknowledged record is there."""
    client = connect(mortal)
    client.create_topic(topic)
    with client.producer(idempotent=True, batch_bytes=512) as producer:
        with ThreadPoolExecutor(1) as beside:
            sending = beside.submit(lambda: [producer.send(topic, r) for r in numbered(0, 1000)])
            until("something is acknowledged", lambda: client.offsets(topic)[1] > 0)
            started = time.monotonic()
            mortal.stop()
            assert time.monotonic() - started < 10
            mortal.restart()
            futures = sending.result(30)
        producer.flush(60)
    assert client.read(topic, 1000) == numbered(0, 1000)
    offsets = [f.result(0) for f in futures]
    if mortal.name == "pybroker":
        assert offsets == list(range(1000))
    else:  # Kafka's snapshot keeps one batch of each producer, and drops the offsets of older batches in flight
        assert len(offsets) == 1000
