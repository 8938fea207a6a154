"""Log directories read without a broker: ours, Apache Kafka's or a backup, closed or being written at this moment.

Files are read where they lie, through maps of WINDOW_BYTES: that saves the copy, which takes a third of the time and
more (bench/test_columns.py shows both). A file that is written to, just now or while it is read, is copied instead;
one that is cut while it is read costs that read an error.

A log that lives may lose segments to retention, or have them merged by compaction, at any time. What is open stays
readable; what is gone by the time it is read is looked for again by the offset that was reached. Reading ends with the
last whole batch that is there.
"""

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pybroker.client import segment_files
from pybroker.client.columns.arrays import record_arrays
from pybroker.core import ColumnBatch, Columns, FileMap, LogError, PartitionBatches, SegmentScan
from pybroker.errors import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from pybroker.model import TopicPartition
from pybroker.protocol.compression import decompress_stored
from pybroker.protocol.records import HEADER_BYTES

WINDOW_BYTES: Final = 64 << 20
"""Mapped at once; a batch that is larger gets a map of its size. Smaller maps cost more page faults and calls."""

BATCH_ROWS: Final = 1 << 16

INDEXES: Final = {
    ".index": np.dtype([("offset", ">i4"), ("position", ">i4")]),
    ".timeindex": np.dtype([("timestamp", ">i8"), ("offset", ">i4")]),
}
"""Of each kind of index file an entry; offsets count from the segment's first, which is the file's name."""

CHUNK_BYTES: Final = 1 << 20
"""Copied at once where nothing is mapped; a batch that is larger is copied whole."""

_DIRECTORY_NAME: Final = re.compile(r"(?P<topic>[\w.-]+)-(?P<partition>\d{1,9})(\.[0-9a-f]{32}-(delete|stray|future))?")
_LENGTH_AT: Final = 8
_FRAME_BYTES: Final = 12
_ATTEMPTS: Final = 100

Entries = NDArray[Any]


def read_index(path: str | os.PathLike[str]) -> Entries:
    """The entries of an .index or a .timeindex file, ascending, as a structured array that is mapped from the file.

    Use it only on a log without a writer: entries of a file that is truncated meanwhile read as zeros. Raises OSError;
    ValueError for another suffix."""
    found = Path(path)
    dtype = _entry_of(found)
    with found.open("rb") as file:
        count = os.fstat(file.fileno()).st_size // dtype.itemsize
        if not count:
            return np.empty(0, dtype)
        try:
            entries = memoryview(FileMap(file.fileno(), 0, count * dtype.itemsize))
        except OSError:  # not all file systems map files
            return _ascending(np.fromfile(file, dtype, count))
        return _ascending(np.frombuffer(entries, dtype))


def _entry_of(path: Path) -> np.dtype[np.void]:
    if path.suffix not in INDEXES:
        raise ValueError(f"{path}: an index file ends with {' or '.join(INDEXES)}")
    return INDEXES[path.suffix]


def _keys(entries: Entries) -> Entries:
    key = next(iter(entries.dtype.fields or {}))
    found: Entries = entries[key]
    return found


def _ascending(entries: Entries) -> Entries:
    """The entries in use. Kafka preallocates an index until it closes it; the rest of the file is zeros."""
    falls = np.flatnonzero(np.diff(_keys(entries)) <= 0)
    return entries[: falls[0] + 1] if len(falls) else entries


def _floor(path: Path, key: int, value: str) -> int:
    """The value of the last entry whose key is below `key`; 0 without one, or without a sound index."""
    try:
        data = path.read_bytes()
    except OSError:
        return 0
    dtype = _entry_of(path)
    entries = _ascending(np.frombuffer(data, dtype, len(data) // dtype.itemsize) if data else np.empty(0, dtype))
    place = int(np.searchsorted(_keys(entries), key, "left"))
    return max(0, int(entries[value][place - 1])) if place else 0


def position_of(file: int, index: Path, base: int, offset: int) -> int:
    """A position at or before the batch with `offset` in the open segment that begins with `base`, by its index file.

    0 if the index is missing, or its position is no batch at or before the offset."""
    position = _floor(index, min(offset - base, 0x7FFFFFFF), "position") if offset > base else 0
    head = os.pread(file, HEADER_BYTES, position) if position else b""
    sound = len(head) == HEADER_BYTES and head[16] == 2 and base <= int.from_bytes(head[:8], "big") <= offset
    return position if sound else 0


def window(
    file: int, position: int, bytes_max: int = WINDOW_BYTES, *, mapped: bool = True
) -> FileMap | bytes | None:
    """The bytes from a batch's start on, that batch at least; None where the file ends before it does.

    They are copied where they are not to be mapped, or cannot be: the file was written to just now, or its file system
    maps none. LogError(KAFKA_STORAGE_ERROR) if the disk cannot read them."""
    left = os.fstat(file).st_size - position
    head = _copied(file, _FRAME_BYTES, position)
    if left < HEADER_BYTES or len(head) < _FRAME_BYTES:
        return None
    wanted = _FRAME_BYTES + int.from_bytes(head[_LENGTH_AT:], "big", signed=True)
    if wanted > left:
        return None
    if mapped:
        with contextlib.suppress(OSError):
            return FileMap(file, position, min(max(wanted, bytes_max, HEADER_BYTES), left))
    return _copied(file, min(max(wanted, CHUNK_BYTES), left), position)


def _copied(file: int, size: int, position: int) -> bytes:
    """Read `size` bytes, fewer at the end of the file or before a block that cannot be read."""
    found = b""
    try:
        while len(found) < size and (piece := os.pread(file, size - len(found), position + len(found))):
            found = found + piece if found else piece
        return found
    except OSError as problem:
        raise LogError(KAFKA_STORAGE_ERROR, f"bytes {position} to {position + size} of a segment: {problem}") from None


class OpenSegment(NamedTuple):
    """A segment whose file is open. next_base is the base of the next segment with records, None without one: only then
    may the file end in reserved space, or in a batch that is being written."""

    file: int
    base: int
    path: Path
    next_base: int | None

    @property
    def size(self) -> int:
        return os.fstat(self.file).st_size

    def check_end(self, position: int, reached: int) -> None:
        """Raise LogError(CORRUPT_MESSAGE) if there are bytes after `position`, the end of the whole batches."""
        left = self.size - position
        if left <= 0:
            return
        if self.next_base is not None:
            raise LogError(CORRUPT_MESSAGE, f"{self.path}: the batch at byte {position} is cut: {left} bytes")
        if _are_zeros(self.file, position):
            return
        scan = SegmentScan(str(self.path), position=position, reached=reached)
        spots = scan.step()
        if spots and spots[0][0] == position and spots[0][1] < scan.size:
            raise LogError(
                CORRUPT_MESSAGE, f"{self.path}: no batch begins at byte {position}, and sound ones follow it"
            )


def _are_zeros(file: int, position: int) -> bool:
    while piece := _copied(file, CHUNK_BYTES, position):
        if piece.count(0) != len(piece):
            return False
        position += len(piece)
    return True


class LogFiles:
    """The segments of one partition's directory, read from an offset on."""

    def __init__(self, path: str | os.PathLike[str], *, check_crcs: bool = True) -> None:
        self.path = Path(path)
        self._check_crcs = check_crcs
        if not self.segments():
            raise FileNotFoundError(f"{self.path} has no segments: a partition's directory has files like {0:020}.log")

    @property
    def tp(self) -> TopicPartition | None:
        """The partition, by the name of its directory; None if the name is of another form."""
        found = _DIRECTORY_NAME.fullmatch(self.path.resolve().name)
        return TopicPartition(found["topic"], int(found["partition"])) if found else None

    def segments(self) -> list[int]:
        """The base offsets of the segments that are there now, ascending."""
        return segment_files.bases(self.path)

    def batches(self, start: int, end: int | None = None) -> Iterator[PartitionBatches]:
        """The records from `start` to before `end` (None: all there are now), each to be read to its end in turn.

        Raises OSError, and LogError(CORRUPT_MESSAGE) if a segment but the last ends within a batch."""
        offset, last, done = start, self.segments()[-1], (-1, -1)
        while end is None or offset < end:
            segment = self._open(offset, last, done)
            if segment is None:
                return
            try:
                done = segment.base, os.fstat(segment.file).st_ino
                offset = max(offset, segment.base)
                for batches in self._batches_of(segment, offset, end):
                    yield batches
                    offset = batches.next_offset
            finally:
                os.close(segment.file)

    def _open(self, offset: int, last: int, done: tuple[int, int]) -> OpenSegment | None:
        """The segment with the offset, or the next if that is `done`; None past `last`.

        `done` is a base and an inode: compaction puts a new file in the place of those it merged."""
        for _ in range(_ATTEMPTS):
            bases = self.segments()
            for base in bases[max(bisect_right(bases, offset) - 1, 0) :]:
                if base > last:
                    return None
                path = self._file(base, ".log")
                try:
                    file = os.open(path, os.O_RDONLY)
                except FileNotFoundError:
                    break  # removed since, or merged into another: look again
                if (base, os.fstat(file).st_ino) != done:
                    return OpenSegment(file, base, path, segment_files.base_behind(self.path, base))
                os.close(file)
            else:
                return None
        raise FileNotFoundError(f"{self.path}: its segments go faster than they can be opened")

    def _file(self, base: int, suffix: str) -> Path:
        return segment_files.path_of(self.path, base, suffix)

    def _batches_of(self, segment: OpenSegment, offset: int, end: int | None) -> Iterator[PartitionBatches]:
        """The batches of one segment, as much as is mapped at once."""
        file, reached = segment.file, segment.base
        position = position_of(file, self._file(segment.base, ".index"), segment.base, offset)
        mapped = True
        while (data := window(file, position, mapped=mapped)) is not None:
            batches = PartitionBatches(
                data, start_offset=offset, end_offset=end, check_crc=self._check_crcs,
                reserved=segment.next_base is None, reached=reached, next_base=segment.next_base,
            )  # fmt: skip
            yield batches
            if batches.stale and segment.size < position + len(data):
                cut = f"{segment.path}: it was cut while it was read, at byte {position + batches.position}"
                raise LogError(KAFKA_STORAGE_ERROR, cut)
            mapped = not batches.stale
            position += batches.position
            offset, reached = batches.next_offset, batches.reached
            if offset == end:
                return
            if batches.zeros or (mapped and not batches.position):
                break
        segment.check_end(position, reached)

    # -- by time -------------------------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The offset of the first record that is as late; None if none is. As brokers answer ListOffsets."""
        bases = self.segments()
        columns = Columns(["offset", "timestamp"], decompress=decompress_stored)
        for base, after in zip(bases, [*bases[1:], None], strict=True):
            known = base + _floor(self._file(base, ".timeindex"), timestamp_ms, "offset")
            for batches in self.batches(known, after):
                while not batches.finished:
                    columns.read(batches, max_records=BATCH_ROWS)
                    found = _first(columns.take(), timestamp_ms)
                    if found is not None:
                        return found
        return None


def _first(batch: ColumnBatch, timestamp_ms: int) -> int | None:
    found = record_arrays(batch)
    assert found.timestamp is not None and found.offset is not None, "they were asked for"
    late = np.flatnonzero(found.timestamp.view(np.int64) >= timestamp_ms)
    return int(found.offset[late[0]]) if len(late) else None
