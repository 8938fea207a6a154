"""The batches of a log segment as plain facts, for `pybroker dump`: ours or Kafka's, live or damaged.

Nothing is trusted: each length is checked before it is used. protocol.records documents the format.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from pybroker.cli.output import Document
from pybroker.client import segment_files
from pybroker.core import SegmentScan, crc32c
from pybroker.errors import KafkaError
from pybroker.model import CODECS
from pybroker.protocol import records

WINDOW_BYTES: Final = 1 << 20
_OFFSET_MAX: Final = (1 << 63) - 1
LENGTH_BYTES: Final = 12  # base offset and batch length, which the length does not include

Entry = Document


class Damage(NamedTuple):
    """The position of damage, in bytes from the start of the file, and its cause."""

    position: int
    reason: str


Items = Iterator[Entry | Damage]
"""The content of a file in order: entries as dicts for JSON, and a Damage where the file is wrong. The records of a
batch are an iterator, to be exhausted before the next item, because a small file may hold very many."""


class _Window:
    """A file read in pieces: `at` returns the bytes at a position, as far as the file has them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.start = 0
        self.data = b""

    def at(self, position: int, size: int) -> memoryview:
        offset = position - self.start
        if offset < 0 or offset + size > len(self.data):
            self.start = position
            self.data = os.pread(self.file.fileno(), max(size, WINDOW_BYTES), position)
            offset = 0
        return memoryview(self.data)[offset : offset + size]


def read_batches(path: Path, with_records: bool) -> Items:
    """Yield each batch. The walk continues after a batch with damaged content, but not after a damaged length.

    No CRC covers base offsets: they must lie between the last offset read and the base of the next segment."""
    with path.open("rb") as file:
        window = _Window(file)
        position, next_offset, next_base = 0, *_bounds(path)
        misplaced = _spots(path)
        while position < window.size:
            left = window.size - position
            head = window.at(position, records.HEADER_BYTES)
            fault = _fault_of_head(head, left)
            if fault:
                yield Damage(position, f"{fault}; {left} bytes from here on are not batches")
                return
            size = LENGTH_BYTES + int.from_bytes(head[8:12], "big", signed=True)
            whole = window.at(position, size)
            try:
                batch = records.read_batch(whole, check_crc=False)
            except KafkaError as error:
                yield Damage(position, error.message)
                position += size
                continue
            yield from _batch(batch, whole, position, with_records)
            if batch.base_offset < next_offset:
                yield Damage(position, f"offset {batch.base_offset} comes after offset {next_offset - 1}")
            elif batch.last_offset >= next_base:
                what = f"offset {batch.last_offset} is not below {next_base}, where the next segment begins"
                yield Damage(position, what)
                next_offset = max(next_offset, min(batch.base_offset, next_base))
                position += size
                continue
            elif position in misplaced and crc32c(whole[records.CRC_FROM :]) == batch.crc:
                what = f"offset {batch.base_offset} or leader epoch {batch.partition_leader_epoch}"
                yield Damage(position, f"{what} does not fit the batches around it")
                position += size
                continue
            next_offset = batch.last_offset + 1
            position += size


def _is_segment(path: Path) -> bool:
    return path.suffix == ".log" and len(path.stem) == len(f"{0:020}") and path.stem.isdecimal()


def _spots(path: Path) -> set[int]:
    """The positions at which the broker's own check, which also looks at the batches that follow, finds no valid
    batch."""
    if not _is_segment(path):
        return set()
    return {position for position, *_ in SegmentScan(str(path)).step()}


def _bounds(path: Path) -> tuple[int, int]:
    """Return the base offsets of a segment and of the next non-empty one in its directory; (-1, the largest) for a file
    with another name."""
    if not _is_segment(path):
        return -1, _OFFSET_MAX
    base = int(path.stem)
    after = segment_files.base_behind(path.parent, base)
    return base, _OFFSET_MAX if after is None else after


def _fault_of_head(head: memoryview, left: int) -> str | None:
    """Return why the header at the start of a batch has no usable length; None if it has."""
    if len(head) < records.HEADER_BYTES:
        return f"{left} bytes are left, but a batch has at least {records.HEADER_BYTES}"
    if not any(head):
        return "zeros where a batch should begin"
    size = LENGTH_BYTES + int.from_bytes(head[8:12], "big", signed=True)
    if head[records.MAGIC_AT] != records.MAGIC:
        return f"magic {head[records.MAGIC_AT]} where {records.MAGIC} is expected"
    if not records.HEADER_BYTES <= size <= left:
        return f"the batch's length is {size} bytes, but {left} are left"
    return None


def _batch(batch: records.Batch, whole: memoryview, position: int, with_records: bool) -> Items:
    attributes = batch.attributes
    entry: Entry = {
        "position": position,
        "size": batch.size,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "count": batch.count,
        "codec": CODECS[batch.codec] if batch.codec < len(CODECS) else str(batch.codec),
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "timestamp_type": "LogAppendTime" if attributes & records.LOG_APPEND_TIME else "CreateTime",
        "leader_epoch": batch.partition_leader_epoch,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": bool(attributes & records.TRANSACTIONAL),
        "control": bool(attributes & records.CONTROL),
        "delete_horizon": bool(attributes & records.DELETE_HORIZON),
        "crc": batch.crc,
    }
    damages: list[Damage] = []
    counted = crc32c(whole[records.CRC_FROM :])
    if counted != batch.crc:
        damages.append(Damage(position, f"CRC {batch.crc:#010x} is written, {counted:#010x} is right"))
    elif with_records:
        entry["records"] = _records(batch, position, damages)
    yield entry
    yield from damages


def _records(batch: records.Batch, position: int, damages: list[Damage]) -> Iterator[Entry]:
    """Yield the records of a batch, up to one that does not parse, which is added to the damages."""
    count = 0
    try:
        for record in batch.records():
            yield _record(record, batch)
            count += 1
    except KafkaError as error:
        damages.append(Damage(position, f"record {count} of the batch: {error.message}"))


def _record(record: records.Record, batch: records.Batch) -> Entry:
    entry: Entry = {"offset": record.offset, "timestamp": record.timestamp_ms}
    if batch.attributes & records.CONTROL:
        type_, epoch = records.read_marker(record)
        name = records.MARKERS[type_] if 0 <= type_ < len(records.MARKERS) else str(type_)
        return {**entry, "marker": name, "coordinator_epoch": epoch}
    return {**entry, "key": record.key, "value": record.value, "headers": [list(h) for h in record.headers]}
