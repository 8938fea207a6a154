"""From a timestamp to a record: core finds the batch, here its records are looked through.

A compressed batch is decompressed on a thread, with a bound on what it may become.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from pybroker import core
from pybroker.protocol.compression import Buffer, decompress

BATCH_HEADER_BYTES = 61
PLAIN_BYTES_MAX = 100 << 20
"""What one batch may become when it is decompressed, about the largest request that brought it."""


class Found(NamedTuple):
    """A record's place and time; -1 all over where there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


NOTHING = Found(-1, -1, -1)


def open_batch(batch: Buffer, header: core.BatchHeader) -> Buffer:
    """The records section of a batch, decompressed. Raises KafkaError 2, 10 or 76."""
    payload = memoryview(batch)[BATCH_HEADER_BYTES : header.size]
    return decompress(header.codec, payload, PLAIN_BYTES_MAX) if header.codec else payload


def _first_record(batch: bytes, wanted: Callable[[int], bool]) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record whose timestamp is wanted."""
    header = core.check_batch(batch)
    for offset, timestamp, *_ in core.walk_records(open_batch(batch, header), header):
        if header.is_log_append_time:
            timestamp = header.max_timestamp
        if wanted(timestamp):
            return offset, timestamp
    return None


async def _in_batch(
    log: core.Partition, offset: int, epoch: int, wanted: Callable[[int], bool], workers: Executor
) -> Found:
    """The first wanted record of the batch at `offset`."""
    piece = log.read(offset, 1).slice
    if piece is None:
        return NOTHING
    try:
        batch = piece.tobytes()
    finally:
        piece.close()
    record = await asyncio.get_running_loop().run_in_executor(workers, _first_record, batch, wanted)
    return NOTHING if record is None else Found(*record, epoch)


async def by_time(log: core.Partition, timestamp_ms: int, bound: int, workers: Executor) -> Found:
    """The first record below `bound` with that timestamp or a later one. Raises KafkaError, core.LogError."""
    batch = log.offset_for_timestamp(timestamp_ms, bound=bound)
    if batch is None:
        return NOTHING
    offset, _, epoch = batch
    found = await _in_batch(log, offset, epoch, lambda timestamp: timestamp >= timestamp_ms, workers)
    return found if found.offset < bound else NOTHING


async def latest_time(log: core.Partition, workers: Executor) -> Found:
    """The first of the records with the largest timestamp (KIP-734). Raises KafkaError, core.LogError."""
    batch = log.max_timestamp()
    if batch is None:
        return NOTHING
    offset, largest, epoch = batch
    return await _in_batch(log, offset, epoch, lambda timestamp: timestamp == largest, workers)
