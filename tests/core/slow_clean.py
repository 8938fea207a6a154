"""Compaction in plain Python: a log as a list of records. The reference model for core's compaction rounds."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.core import Cleaned, Partition, clean, iter_batches, walk_records
from pybroker.protocol.compression import PLAIN_BYTES_MAX, compress, decompress, open_batch
from tests.core.logs import NOW, read_all

DELETE_RETENTION_MS = 1000
HORIZON = 0x40


class Kept(NamedTuple):
    """A record, and the base offset of its batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    batch: int


def stored(data: bytes) -> list[Kept]:
    """All records of these batches."""
    out = []
    for at, header in iter_batches(data):
        plain = open_batch(data[at : at + header.size], header)
        for offset, timestamp, key, value, _ in walk_records(plain, header):
            out.append(Kept(offset, timestamp, key, value, header.base_offset))
    return out


def latest(records: list[Kept]) -> dict[bytes | None, bytes]:
    """The last value of each key, as a reader of all records sees it."""
    held: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            held.pop(record.key, None)
        else:
            held[record.key] = record.value
    return held


class SlowClean:
    """The records of a log, and the delete horizon of each batch."""

    def __init__(self) -> None:
        self.records: list[Kept] = []
        self.horizons: dict[int, int] = {}
        self.first_dirty = 0

    def round(self, end: int, now_ms: int) -> None:
        """Run one round over everything below `end`."""
        last = {r.key: r.offset for r in self.records if self.first_dirty <= r.offset < end and r.key is not None}
        self.records = [r for r in self.records if r.offset >= end or self._stays(r, last, now_ms)]
        for r in self.records:
            if r.value is None and r.batch < end:
                self.horizons.setdefault(r.batch, now_ms + DELETE_RETENTION_MS)
        self.first_dirty = end

    def _stays(self, r: Kept, last: dict[bytes | None, int], now_ms: int) -> bool:
        if r.key is None or last.get(r.key, r.offset) > r.offset:
            return False
        return r.value is not None or r.batch not in self.horizons or now_ms < self.horizons[r.batch]


def one_round(
    partition: Partition,
    first_dirty: int = 0,
    *,
    end: int | None = None,
    now_ms: int = NOW,
    map_bytes: int = 1 << 20,
    bytes_per_s: int = 0,
    delete_retention_ms: int = DELETE_RETENTION_MS,
) -> Cleaned | None:
    """Run one round with real codecs up to `end` (the log end if None)."""
    return clean(
        partition,
        first_dirty=first_dirty,
        end=partition.log_end_offset if end is None else end,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        map_bytes=map_bytes,
        decompress=lambda codec, data: decompress(codec, data, PLAIN_BYTES_MAX),
        compress=compress,
        bytes_per_s=bytes_per_s,
    )


def assert_whole(partition: Partition) -> list[Kept]:
    """Check that batches are in order and that a read from every offset finds its record; return the records."""
    data, expected = read_all(partition), -1
    for _, header in iter_batches(data):
        assert header.base_offset > expected
        expected = header.last_offset
    assert partition.log_end_offset in (expected + 1, 0)
    records = stored(data)
    ends = [header.last_offset for _, header in iter_batches(data)]
    for offset in range(partition.log_start_offset, partition.log_end_offset):
        piece = partition.read(offset, 1).slice
        assert piece is not None
        _, first = next(iter(iter_batches(piece.tobytes())))
        piece.close()
        assert first.last_offset == next(end for end in ends if end >= offset)
    return records
