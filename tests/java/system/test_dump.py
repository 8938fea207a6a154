"""Kafka's own tool reads our directories without complaint: after a clean stop, after kill -9, and during writes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.neutral import CODECS, Record
from tests.core.test_clean import Story
from tests.harness import BrokerProcess
from tests.java import peers
from tests.java.dump import Dump, dump, everything, files

pytestmark = pytest.mark.java

START_MS = int(time.time() * 1000) - 3_600_000
SMALL_SEGMENTS = {"segment.bytes": "4096", "index.interval.bytes": "256", "retention.ms": "-1"}


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        peers.jars("3.9.1")
    except peers.MissingJava as e:
        pytest.skip(str(e))


def records(start: int, end: int) -> list[Record]:
    """Text records that the tool prints unchanged; every tenth timestamp jumps back, as with real producers."""
    return [
        Record(b"value %d" % i, b"key %d" % (i % 9), (("h", b"x"),), START_MS + i - (5_000 if i % 10 == 0 else 0))
        for i in range(start, end)
    ]


def fill(broker: BrokerProcess, topic: str, start: int = 0) -> int:
    """Write 2,000 more records in every codec and many small batches, half of them idempotent; return the end
    offset."""
    client = Confluent(broker.bootstrap)
    for i, codec in enumerate(CODECS):
        first = start + 400 * i
        offsets = client.send_all(
            topic, records(first, first + 400), codec=codec, batch_bytes=700, idempotent=i % 2 == 0
        )
        assert offsets == list(range(first, first + 400))
    return start + 400 * len(CODECS)


def assert_holds(dumped: Dump, start: int, end: int) -> None:
    """Check for no complaint, and exactly the records that the client sent."""
    assert dumped.complaints == []
    sent = records(start, end)
    assert [r.offset for r in dumped.records] == list(range(start, end))
    assert [r.timestamp_ms for r in dumped.records] == [r.timestamp_ms for r in sent]
    assert [(r.key, r.payload) for r in dumped.records] == [(str(r.key, "ascii"), str(r.value, "ascii")) for r in sent]
    assert {r.header_names for r in dumped.records} == {("h",)}
    assert all(b.valid for b in dumped.batches)


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> Iterator[tuple[BrokerProcess, str, int]]:
    Confluent(broker.bootstrap).create_topic(topic, config=SMALL_SEGMENTS)
    yield broker, topic, fill(broker, topic)


@pytest.mark.long
def test_after_a_clean_stop(filled: tuple[BrokerProcess, str, int]) -> None:
    """A directory after a clean stop passes deep iteration, index sanity and index verification of every segment, and
    ends with a producer snapshot."""
    broker, topic, end = filled
    broker.stop()
    directory = broker.partition_dir(topic)
    assert len(list(directory.glob("*.log"))) > 5
    dumped = everything(directory)
    assert_holds(dumped, 0, end)
    assert {b.codec for b in dumped.batches} == set(CODECS)
    snapshot = directory / f"{end:020}.snapshot"
    assert snapshot.exists()
    told = dumped.text.split(f"Dumping {snapshot}")[1]
    producers = {b.producer_id for b in dumped.batches} - {-1}
    assert len(producers) == 3
    assert all(f"producerId: {p} " in told for p in producers)
    last = {b.producer_id: b for b in dumped.batches}
    assert all(f"lastOffset: {last[p].last_offset} " in told for p in producers)

    sane = dump(sorted(directory.glob("*index")), "--index-sanity-check")
    assert sane.complaints == []
    assert sane.text.count("passed sanity check") == len(list(directory.glob("*index")))
    assert dump(sorted(directory.glob("*index")), "--verify-index-only").complaints == []


def test_the_index_is_dense_enough(filled: tuple[BrokerProcess, str, int]) -> None:
    """The index is dense enough: a full segment has an entry for each index.interval.bytes and a batch, as Kafka would
    write."""
    broker, topic, _ = filled
    broker.stop()
    for log in sorted(broker.partition_dir(topic).glob("*.log"))[:-1]:
        entries = log.with_suffix(".index").stat().st_size // 8
        assert entries >= log.stat().st_size // (256 + 2 * 700)
        assert log.with_suffix(".timeindex").stat().st_size >= 12


def test_after_kill_9(filled: tuple[BrokerProcess, str, int]) -> None:
    """A directory after kill -9 passes: as the kill left it, as recovery repaired it, and after more writes and a
    stop."""
    broker, topic, end = filled
    broker.kill()
    directory = broker.partition_dir(topic)
    logs = dump(sorted(directory.glob("*.log")), "--deep-iteration", "--print-data-log")
    assert_holds(logs, 0, end)
    broker.restart()
    assert_holds(everything(directory), 0, end)
    end = fill(broker, topic, end)
    broker.stop()
    assert_holds(everything(directory), 0, end)


def test_after_deleted_records(filled: tuple[BrokerProcess, str, int]) -> None:
    """DeleteRecords removes only whole segments: the rest is in order from a segment before the new start."""
    broker, topic, end = filled
    assert Confluent(broker.bootstrap).delete_records(topic, 0, 1234) == 1234
    broker.stop()
    dumped = everything(broker.partition_dir(topic))
    first = dumped.records[0].offset
    assert first <= 1234
    assert_holds(dumped, first, end)


@pytest.mark.long
def test_while_the_broker_writes(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """A directory passes while the broker writes: five reads during appends and rolls are each whole, and it grows."""
    client = Confluent(broker.bootstrap)
    client.create_topic(topic, config=SMALL_SEGMENTS)
    directory = broker.partition_dir(topic)
    stopped = False

    def write() -> int:
        number = 0
        with client.producer(batch_bytes=700, linger_ms=0, codec="lz4") as producer:
            while not stopped:
                for record in records(number, number + 20):
                    producer.send(topic, record)
                producer.flush()
                number += 20
        return number

    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(write)
        ends = [0]
        try:
            for _ in range(5):
                dumped = everything(directory, live=True)
                assert_holds(dumped, 0, len(dumped.records))
                ends.append(len(dumped.records))
        finally:
            stopped = True
    assert sorted(set(ends)) == ends, "each look sees more than the one before"
    broker.stop()
    assert_holds(everything(directory), 0, writing.result())


def test_the_tool_complains_when_it_should(filled: tuple[BrokerProcess, str, int], tmp_path: Path) -> None:
    """The tool complains of each planted fault: a flipped byte, a wrong index entry and a torn tail."""
    broker, topic, _ = filled
    broker.stop()
    source = broker.partition_dir(topic)

    def damaged(suffix: str, damage: Callable[[bytearray], None]) -> list[str]:
        directory = tmp_path / "copy"
        shutil.copytree(source, directory)
        victim = sorted(directory.glob(f"*{suffix}"))[0]
        content = bytearray(victim.read_bytes())
        damage(content)
        victim.write_bytes(content)
        complaints = everything(directory).complaints
        shutil.rmtree(directory)
        return complaints

    def flip(content: bytearray) -> None:
        content[-1] ^= 0x40

    def shift(content: bytearray) -> None:
        content[11] ^= 1

    def tear(content: bytearray) -> None:
        del content[-5:]

    assert any("isvalid: false" in c for c in damaged(".log", flip))
    assert any("mismatch" in c.lower() for c in damaged(".index", shift))
    assert any("invalid bytes" in c or "Exception" in c for c in damaged(".log", tear))
    assert everything(source).complaints == []
    assert files(source)


def test_a_compacted_directory(tmp_path: Path) -> None:
    """A compacted directory passes: batches with gaps, empty ones, delete horizons, in every codec, in merged
    segments."""
    story = Story(tmp_path, 7, [0, 1, 2, 3, 4])
    for _ in range(12):
        for _ in range(30):
            story.append()
        story.clean()
    story.home.partition.flush()
    dumped = everything(story.home.directory)
    gaps = "Non-consecutive offsets"  # which the tool reports for every compacted log
    assert [c for c in dumped.complaints if gaps not in c] == []
    assert [(r.offset, r.timestamp_ms) for r in dumped.records] == [r[:2] for r in story.model.records]
    assert [b.count for b in dumped.batches].count(0) > 0
    assert "deleteHorizonMs: OptionalLong[" in dumped.text
    story.home.stop()
    assert [c for c in everything(story.home.directory).complaints if gaps not in c] == []
