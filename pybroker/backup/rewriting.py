"""Batches of a backup made into batches that a broker takes from a producer.

A producer cannot write markers, choose offsets, or write into a transaction of the past. So markers and the records of
transactions that were not committed are left out, the others become plain records, and offsets close up over gaps. A
batch without a gap keeps its records as they are, compressed or not; one with a gap, or with the broker's time, is
built anew.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from pybroker.backup.batches import Fates
from pybroker.backup.manifest import damaged
from pybroker.core import BatchHeader, build_batch, crc32c
from pybroker.errors import KafkaError
from pybroker.protocol import records
from pybroker.protocol.compression import compressor

_SEQUENCE_MASK: Final = 0x7FFFFFFF
_HEAD: Final = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
_TAIL: Final = struct.Struct(">hiqqqhii")  # from the attributes on
_CRC: Final = struct.Struct(">I")


class Producible(NamedTuple):
    """A batch for a producer: the bytes from its attributes on without the producer's part, and the source offsets of
    its records."""

    attributes: int
    base_timestamp: int
    max_timestamp: int
    payload: memoryview
    offsets: Sequence[int]

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self.offsets)

    def stamped(self, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
        """Return the batch of this producer with this base sequence, its CRC computed."""
        tail = _TAIL.pack(
            self.attributes, self.size - 1, self.base_timestamp, self.max_timestamp, producer_id, producer_epoch,
            sequence & _SEQUENCE_MASK, self.size,
        )  # fmt: skip
        crc = crc32c(self.payload, crc32c(tail))
        length = _HEAD.size - 12 + _CRC.size + len(tail) + len(self.payload)
        return b"".join((_HEAD.pack(0, length, -1, records.MAGIC), _CRC.pack(crc), tail, self.payload))


def producible(batch: BatchHeader, whole: memoryview, start: int, fates: Fates, where: str) -> Producible | None:
    """Return the records of a batch from offset `start` on for a producer; None if there are none.

    Raises KafkaError(CORRUPT_MESSAGE) if records that must be built anew do not parse."""
    if batch.is_control or not batch.count or batch.last_offset < start or not fates.committed(batch):
        return None
    gapless = batch.count == batch.last_offset_delta + 1 and batch.base_offset >= start
    if gapless and not batch.is_log_append_time:
        offsets = range(batch.base_offset, batch.last_offset + 1)
        payload = whole[records.HEADER_BYTES : batch.size]
        return Producible(batch.codec, batch.base_timestamp, batch.max_timestamp, payload, offsets)
    return _built_anew(batch, whole, start, where)


def _built_anew(batch: BatchHeader, whole: memoryview, start: int, where: str) -> Producible | None:
    try:
        parsed = records.read_batch(whole[: batch.size], check_crc=False)
        kept = [record for record in parsed.records() if record.offset >= start]
    except KafkaError as error:
        raise damaged(f"{where}: the batch at offset {batch.base_offset} cannot be read: {error.message}") from error
    if not kept:
        return None
    made = memoryview(
        build_batch(
            [(r.timestamp_ms, r.key, r.value, r.headers) for r in kept],
            attributes=batch.codec,
            compress=compressor(batch.codec, None),
        )
    )
    header = records.read_batch(made, check_crc=False)
    offsets = [record.offset for record in kept]
    return Producible(batch.codec, header.base_timestamp, header.max_timestamp, header.payload, offsets)
