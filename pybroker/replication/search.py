"""Look-up of a record by timestamp: core finds the batch, this module searches its records.

All functions block on the disk. The size of a decompressed batch is limited.
"""

from collections.abc import Callable
from typing import NamedTuple

from pybroker import core
from pybroker.protocol.compression import open_batch

Wanted = Callable[[int, int], bool]
"""A predicate on a record's offset and timestamp."""


class FoundRecord(NamedTuple):
    """A record's offset, time and leader epoch; all -1 if there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


NOTHING = FoundRecord(-1, -1, -1)


def _first_record(batch: bytes, wanted: Wanted) -> tuple[int, int] | None:
    """The (offset, timestamp) of the first wanted record in a batch; None if there is none."""
    header = core.check_batch(batch)
    for offset, timestamp, *_ in core.walk_records(open_batch(batch, header), header):
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        if wanted(offset, timestamp):
            return offset, timestamp
    return None


def _in_batch(log: core.Partition, offset: int, wanted: Wanted) -> tuple[FoundRecord, int]:
    """The first wanted record of the batch that holds `offset`, or NOTHING; and the offset after the batch."""
    piece = log.read(offset, 1).slice
    if piece is None:
        return NOTHING, offset
    try:
        batch = piece.tobytes()
    finally:
        piece.close()
    header = core.check_batch(batch)
    record = _first_record(batch, wanted)
    found = NOTHING if record is None else FoundRecord(*record, header.partition_leader_epoch)
    return found, header.last_offset + 1


def by_time(log: core.Partition, timestamp_ms: int, bound: int) -> FoundRecord:
    """The first record below `bound` with that timestamp or a later one. Raises KafkaError, core.LogError.

    Usually it is in the batch that core finds; in a later one if DeleteRecords removed a part of that batch."""
    batch = log.offset_for_timestamp(timestamp_ms, bound=bound)
    if batch is None:
        return NOTHING
    start = log.log_start_offset
    offset, found = max(batch[0], start), NOTHING
    while found is NOTHING and offset < bound:
        found, following = _in_batch(
            log, offset, lambda offset, timestamp: offset >= start and timestamp >= timestamp_ms
        )
        if following == offset:
            break
        offset = following
    return found if found.offset < bound else NOTHING


def latest_time(log: core.Partition) -> FoundRecord:
    """The first of the records with the largest timestamp (KIP-734). Raises KafkaError, core.LogError."""
    batch = log.max_timestamp()
    if batch is None:
        return NOTHING
    offset, largest, _ = batch
    start = log.log_start_offset
    found, _ = _in_batch(log, max(offset, start), lambda offset, timestamp: offset >= start and timestamp == largest)
    return found
