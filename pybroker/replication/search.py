"""From a timestamp to a record: core finds the batch, here its records are looked through.

All of it waits for the disk. A compressed batch is decompressed with a bound on what it may become.
"""

from collections.abc import Callable
from typing import NamedTuple

from pybroker import core
from pybroker.protocol.compression import open_batch

Wanted = Callable[[int, int], bool]
"""Is this record the one, by its offset and timestamp?"""


class Found(NamedTuple):
    """A record's place and time; -1 all over where there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


NOTHING = Found(-1, -1, -1)


def _first_record(batch: bytes, wanted: Wanted) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record of a batch that is wanted."""
    header = core.check_batch(batch)
    for offset, timestamp, *_ in core.walk_records(open_batch(batch, header), header):
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        if wanted(offset, timestamp):
            return offset, timestamp
    return None


def _in_batch(log: core.Partition, offset: int, wanted: Wanted) -> tuple[Found, int]:
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
    found = NOTHING if record is None else Found(*record, header.partition_leader_epoch)
    return found, header.last_offset + 1


def by_time(log: core.Partition, timestamp_ms: int, bound: int) -> Found:
    """The first record below `bound` with that timestamp or a later one. Raises KafkaError, core.LogError.

    Mostly it is in the batch that core finds. It is in a later one where DeleteRecords has cut into that batch."""
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


def latest_time(log: core.Partition) -> Found:
    """The first of the records with the largest timestamp (KIP-734). Raises KafkaError, core.LogError."""
    batch = log.max_timestamp()
    if batch is None:
        return NOTHING
    offset, largest, _ = batch
    start = log.log_start_offset
    found, _ = _in_batch(log, max(offset, start), lambda offset, timestamp: offset >= start and timestamp == largest)
    return found
