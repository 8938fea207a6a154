"""What a consumer returns: records, made of fetched batches."""

from collections.abc import Iterator
from typing import NamedTuple

from pybroker import core
from pybroker.client.fetcher import Chunk
from pybroker.protocol import compression
from pybroker.protocol.records import CONTROL, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL

CREATE_TIME = 0
LOG_APPEND = 1


class Record(NamedTuple):
    """One record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    """0 the producer's time, 1 the broker's."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def records(chunk: Chunk, start: int, check_crcs: bool) -> Iterator[Record]:
    """The records of a chunk from an offset on. Raises core.LogError and KafkaError for batches that do not parse."""
    topic, partition = chunk.place.tp
    open_aborts = sorted(chunk.aborted, key=lambda a: a[1])
    aborted: set[int] = set()
    for position, header in core.iter_batches(chunk.data, check_crc=check_crcs):
        while open_aborts and open_aborts[0][1] <= header.last_offset:
            aborted.add(open_aborts.pop(0)[0])
        batch = chunk.data[position : position + header.size]
        if header.attributes & CONTROL:
            aborted.discard(header.producer_id)
            continue
        if header.last_offset < start or (header.attributes & TRANSACTIONAL and header.producer_id in aborted):
            continue
        by_log = LOG_APPEND if header.attributes & LOG_APPEND_TIME else CREATE_TIME
        payload = compression.open_batch(batch, header) if header.codec else batch[HEADER_BYTES:]
        for offset, timestamp_ms, key, value, headers in core.walk_records(payload, header):
            if offset >= start:
                yield Record(topic, partition, offset, timestamp_ms, by_log, key, value, headers)
