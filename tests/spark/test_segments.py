"""Sealed segments on a shared disk: read without the broker, and without losing a record."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pybroker.client.columns.segments import window
from pybroker.core import Columns, FileMap
from pybroker.spark import options
from pybroker.spark.reading import reader, segment_reader
from pybroker.spark.reading.input_partitions import KafkaInputPartition
from pybroker.spark.reading.offset_reader import OffsetReader
from pybroker.spark.reading.planning import OffsetRange
from pybroker.spark.reading.reader import read_range
from pybroker.spark.reading.segment_reader import SegmentReader
from pybroker.testing import records
from tests.harness import BrokerProcess, settle
from tests.spark.topics import Topics

SEGMENT_BYTES = 1 << 14
COUNT = 1000


@pytest.fixture
def topics(shared_broker: BrokerProcess) -> Topics:
    return Topics(shared_broker)


class Segmented:
    """A topic of several segments, and reads of it."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.topics = topics
        self.topic = topics.create(topic, 1, segment_bytes=SEGMENT_BYTES, index_interval_bytes=512)
        for begin in range(0, COUNT, 20):
            topics.produce(topic, [f"{number:050}" for number in range(begin, begin + 20)])
        self.home = topics.broker.partition_dir(topic)
        bases = sorted(int(path.stem) for path in self.home.glob("*.log"))
        assert len(bases) > 3
        self.sealed_end = bases[-1]

    def partition(self, given: options.SourceOptions, start: int, end: int) -> KafkaInputPartition:
        asker = OffsetReader(given)
        (tp,) = asker.partitions()
        made = KafkaInputPartition(OffsetRange(self.topic, 0, start, end), asker.leader(tp))
        asker.close()
        return made

    def options(self, log_dir: Path, **more: object) -> options.SourceOptions:
        return options.parse_source(self.topics.options(self.topic, logDirs=log_dir, **more), streaming=False)

    def read(self, log_dir: Path, start: int = 0, end: int = COUNT) -> list[int]:
        given = self.options(log_dir)
        batches = list(read_range(given, ("offset", "value"), self.partition(given, start, end)))
        table = pa.Table.from_batches(batches) if batches else None
        if table is None:
            return []
        assert [int(value) for value in table["value"].to_pylist()] == table["offset"].to_pylist()
        found: list[int] = table["offset"].to_pylist()
        return found

    def by_files(self, log_dir: Path, start: int = 0, end: int = COUNT, **more: object) -> int:
        """The number of a range's offsets that come from files alone."""
        return drained(self.reader(log_dir, start, end, **more)) - start

    def reader(self, log_dir: Path, start: int = 0, end: int = COUNT, **more: object) -> SegmentReader:
        given = self.options(log_dir, **more)
        return SegmentReader(given, self.partition(given, start, end), start)


def drained(reader: SegmentReader) -> int:
    """Read until the end of the files that it has listed."""
    while (batches := reader.next_batches()) is not None:
        Columns(["offset"]).read(batches)
        assert batches.position, "nothing was read, and nothing will be"
        reader.go_on(batches.next_offset)
    reader.close()
    return reader.offset


@pytest.fixture
def segmented(topics: Topics, topic: str) -> Iterator[Segmented]:
    yield Segmented(topics, topic)
    for connection in reader._connections.values():  # kept for the worker's next task, which this test does not run
        connection.close()
    reader._connections.clear()


@pytest.fixture
def copied(segmented: Segmented, tmp_path: Path) -> Iterator[Path]:
    """A copy of the log directory that the broker has written, for a test to damage."""
    passing = shutil.ignore_patterns("*.tmp")  # the broker runs and renames these files
    shutil.copytree(segmented.home, tmp_path / segmented.home.name, ignore=passing)
    yield tmp_path


def test_sealed_segments_need_no_broker(segmented: Segmented) -> None:
    """Records before the active segment are read from files, from any offset on. The broker has the rest, and together
    they are the topic."""
    log_dir = segmented.home.parent
    assert segmented.by_files(log_dir) == segmented.sealed_end
    for start, end in [(0, COUNT), (1, COUNT - 1), (333, 777), (segmented.sealed_end, COUNT), (5, 6), (19, 21)]:
        assert segmented.read(log_dir, start, end) == list(range(start, end))
        assert segmented.by_files(log_dir, start, end) == max(0, min(end, segmented.sealed_end) - start)


def test_a_batch_larger_than_what_is_read_at_once(segmented: Segmented) -> None:
    """A batch larger than one read is read whole, in a buffer that grows."""
    small = {"kafka.max.partition.fetch.bytes": 64}
    assert segmented.by_files(segmented.home.parent, **small) == segmented.sealed_end


def test_an_index_only_helps(segmented: Segmented, copied: Path) -> None:
    """A missing or malformed index loses no record."""
    home = copied / segmented.home.name
    for index in home.glob("*.index"):
        entries = list(struct.iter_unpack(">ii", index.read_bytes()))
        later = [struct.pack(">ii", offset, entries[-1][1]) for offset, _ in entries]
        index.write_bytes(b"".join(later))
    assert segmented.read(copied, 333, 777) == list(range(333, 777))
    for index in home.glob("*.index"):
        index.unlink()
    assert segmented.read(copied, 333, 777) == list(range(333, 777))


def test_a_directory_of_another_topic_is_not_read(segmented: Segmented, copied: Path) -> None:
    """A directory of another topic id is not read: the topic was deleted and created again under the same name."""
    told = copied / segmented.home.name / "partition.metadata"
    told.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert segmented.by_files(copied) == 0
    assert segmented.read(copied) == list(range(COUNT))
    assert segmented.read(copied / "nowhere") == list(range(COUNT))


def test_a_file_that_is_cut_beneath_its_map_is_left_to_the_broker(
    segmented: Segmented, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that shrinks under its mmap, at any place, gives the records before that place; the broker gives the rest,
    each once."""
    files = sorted((copied / segmented.home.name).glob("*.log"))
    whole = {path: path.read_bytes() for path in files}
    for cut in (0, 100, 4096, 5000, 12_000):

        maps = 0

        def mapped_and_cut(
            file: int, position: int, bytes_max: int, *, mapped: bool, at: int = cut
        ) -> FileMap | bytes | None:
            nonlocal maps
            found = window(file, position, bytes_max, mapped=mapped)
            maps += isinstance(found, FileMap)
            os.truncate(file, at)
            return found

        for path, data in whole.items():
            path.write_bytes(data)
            settle(path)
        with monkeypatch.context() as patched:
            patched.setattr(segment_reader, "window", mapped_and_cut)
            patched.setattr(os, "open", lambda path, flags, opened=os.open: opened(path, os.O_RDWR))
            assert segmented.read(copied, 7) == list(range(7, COUNT))
        assert maps


def test_what_the_files_lack_the_broker_has(segmented: Segmented, copied: Path) -> None:
    """A file that is missing, cut or empty ends the read from files at its last whole batch; the broker has the
    rest."""
    files = sorted((copied / segmented.home.name).glob("*.log"))
    with files[2].open("r+b") as file:
        file.truncate(files[2].stat().st_size - 7)
    cut = int(files[2].stem)
    assert cut <= segmented.by_files(copied) < int(files[3].stem)
    assert segmented.read(copied) == list(range(COUNT))
    files[1].unlink()
    assert segmented.by_files(copied) == int(files[1].stem)
    assert segmented.read(copied) == list(range(COUNT))


def test_read_committed_is_for_the_broker(segmented: Segmented) -> None:
    """A read_committed read uses the broker only: the segments lack the list of aborted transactions."""
    assert segmented.by_files(segmented.home.parent, **{"kafka.isolation.level": "read_committed"}) == 0


def test_the_testing_kit_agrees(segmented: Segmented) -> None:
    """The testing kit's slow reader finds the same records in this topic."""
    with segmented.topics.connect() as connection:
        held = records.read(connection, segmented.topic, 0)
    assert [record.offset for record in held] == list(range(COUNT))


def test_segments_that_compaction_makes_one(segmented: Segmented, copied: Path) -> None:
    """A compaction that merges segments while a task reads loses no record: the task stops where its first file
    ended, as the next file is gone."""
    first, second = sorted((copied / segmented.home.name).glob("*.log"))[:2]
    reader = segmented.reader(copied)
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    assert drained(reader) == int(second.stem)
    assert segmented.read(copied) == list(range(COUNT))
