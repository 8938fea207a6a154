"""Batches of a backup made into batches for a new topic: as a producer sends them, or as they lie in a log.

A producer cannot write markers, choose offsets, or write into a transaction of the past. So markers and the records of
transactions that were not committed are left out, the others become plain records, and offsets close up over gaps. A
batch without a gap keeps its records as they are, compressed or not; one with a gap, or with the broker's time, is
built anew.

In a log dir offsets are kept, with their gaps, and batches too, but for what belongs to the old topic: leader epochs,
and producer ids, which in another cluster are those of other producers.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pybroker.backup.batches import Fates, WholeBatches
from pybroker.backup.manifest import damaged
from pybroker.core import BatchHeader, build_batch, crc32c
from pybroker.errors import KafkaError
from pybroker.protocol import records
from pybroker.protocol.compression import compressor

_SEQUENCE_MASK: Final = 0x7FFFFFFF
_HEAD: Final = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
_TAIL: Final = struct.Struct(">hiqqqhii")  # from the attributes on
_CRC: Final = struct.Struct(">I")
_EPOCH: Final = struct.Struct(">i")
_EPOCH_AT: Final = 12
_PRODUCER: Final = struct.Struct(">qhi")  # producer id, its epoch, base sequence
_PRODUCER_AT: Final = records.HEADER_BYTES - 4 - _PRODUCER.size
_ATTRIBUTES: Final = struct.Struct(">h")


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


def storable(piece: WholeBatches, start: int, fates: Fates) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a piece that reach offset `start`, each as it lies in a log of leader epoch 0 without
    producers; those without committed records are left out."""
    data = bytearray(piece.data)
    view = memoryview(data)
    for position, batch in piece.batches:
        if batch.is_control or batch.last_offset < start or not fates.committed(batch):
            continue
        _EPOCH.pack_into(data, position + _EPOCH_AT, 0)
        if batch.producer_id >= 0 or batch.is_transactional:
            covered = position + records.CRC_FROM
            attributes = _ATTRIBUTES.unpack_from(data, covered)[0] & ~records.TRANSACTIONAL
            _ATTRIBUTES.pack_into(data, covered, attributes)
            _PRODUCER.pack_into(data, position + _PRODUCER_AT, -1, -1, -1)
            _CRC.pack_into(data, covered - _CRC.size, crc32c(view[covered : position + batch.size]))
        yield batch, view[position : position + batch.size]
