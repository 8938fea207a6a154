"""Record batches, magic 2 (KIP-98), in pure Python: the reference for tests of core, also used by `dump`.

A batch is a header of 61 bytes, big-endian, and its records, plain or compressed with the codec in attribute bits 0-2:

    base_offset i64 | batch_length i32 (of all that follows) | partition_leader_epoch i32 | magic i8 | crc u32;
    attributes i16 | last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 | producer_id i64;
    producer_epoch i16 | base_sequence i32 | count i32.

The CRC-32C covers everything from attributes on, so a leader can set offset and epoch without computing it again. A
record is: its length, attributes i8 (0), timestamp delta, offset delta, key, value, the number of headers, and the
headers, each a key and a value. All but the attributes are zigzag varints, as are the lengths of keys and values, with
-1 for null; a header's key is UTF-8 and never null. A log consists of batches only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct as Layout
from typing import Any, Final, NamedTuple, NoReturn

from pybroker.errors import CORRUPT_MESSAGE, INVALID_RECORD, UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError
from pybroker.protocol.compression import compress as deflate
from pybroker.protocol.compression import decompress_stored as inflate

Buffer = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, bytes | None]]

_FRAME: Final = Layout(">qi")  # base_offset, batch_length
_BEFORE_CRC: Final = Layout(">ib")  # partition_leader_epoch, magic
_CRC: Final = Layout(">I")
_AFTER_CRC: Final = Layout(">hiqqqhii")

MAGIC_AT: Final = _FRAME.size + _BEFORE_CRC.size - 1
CRC_FROM: Final = MAGIC_AT + 1 + _CRC.size  # the first byte that the CRC covers
HEADER_BYTES: Final = CRC_FROM + _AFTER_CRC.size
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

INFLATED_BYTES_MAX: Final = 1 << 28
"""The most bytes of decompressed records of one batch, unless the caller sets another limit."""


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as in a log or a request: its header, and its records, perhaps compressed, as `payload`."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    payload: memoryview

    @property
    def size(self) -> int:
        return _FRAME.size + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    def records(self, max_bytes: int = INFLATED_BYTES_MAX) -> Iterator[Record]:
        """Yield the records. Raises INVALID_RECORD if they do not parse, and the errors of `compression.decompress`."""
        data = inflate(self.codec, self.payload, max_bytes)
        position = 0
        for _ in range(self.count):
            record, position = _read_record(self, data, position)
            yield record
        if position != len(data):
            _invalid(f"{len(data) - position} bytes follow the {self.count} records of the batch")


# -- batches ---------------------------------------------------------------------------------------------------------


def read_batch(data: Buffer, position: int = 0, *, check_crc: bool = True) -> Batch:
    """The batch at `position`, without checking its records. Raises CORRUPT_MESSAGE if it is truncated or its CRC does
    not match, UNSUPPORTED_FOR_MESSAGE_FORMAT for another magic, INVALID_RECORD for impossible counts."""
    view = memoryview(data)[position:]
    if len(view) < HEADER_BYTES:
        raise KafkaError(CORRUPT_MESSAGE, f"{len(view)} bytes are left, but a batch has at least {HEADER_BYTES}")
    base_offset, length = _FRAME.unpack_from(view)
    leader_epoch, magic = _BEFORE_CRC.unpack_from(view, _FRAME.size)
    if magic != MAGIC:
        raise KafkaError(UNSUPPORTED_FOR_MESSAGE_FORMAT, f"magic {magic} is not supported, only {MAGIC}")
    end = _FRAME.size + length
    if not HEADER_BYTES <= end <= len(view):
        raise KafkaError(CORRUPT_MESSAGE, f"the size of the batch is {end} bytes, but {len(view)} are there")
    (crc,) = _CRC.unpack_from(view, MAGIC_AT + 1)
    if check_crc and crc32c(view[CRC_FROM:end]) != crc:
        raise KafkaError(CORRUPT_MESSAGE, f"the batch at offset {base_offset} does not match its CRC {crc:#010x}")
    rest: tuple[Any, ...] = (*_AFTER_CRC.unpack_from(view, CRC_FROM), view[HEADER_BYTES:end])
    batch = Batch(base_offset, length, leader_epoch, magic, crc, *rest)
    if not 0 <= batch.count <= batch.last_offset_delta + 1:
        _invalid(f"{batch.count} records in a batch whose last offset delta is {batch.last_offset_delta}")
    return batch


def iter_batches(data: Buffer, *, check_crc: bool = True) -> Iterator[tuple[int, Batch]]:
    """Yield (position, batch) of each complete batch; stop at an incomplete one, as at the end of a Fetch response."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        _, length = _FRAME.unpack_from(data, position)
        if _FRAME.size + length > len(data) - position:
            return
        batch = read_batch(data, position, check_crc=check_crc)
        yield position, batch
        position += batch.size


def build_batch(
    records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
    *,
    base_offset: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    level: int | None = None,
) -> bytes:
    """Build a batch of one or more (timestamp_ms, key, value, headers), with the codec in `attributes` at this
    compression level."""
    items = list(records)
    base_timestamp = items[0][0]
    payload = b"".join(
        _write_record(timestamp - base_timestamp, delta, key, value, headers)
        for delta, (timestamp, key, value, headers) in enumerate(items)
    )
    latest = max(timestamp for timestamp, *_ in items)
    producer = (producer_id, producer_epoch, base_sequence)
    covered = _AFTER_CRC.pack(attributes, len(items) - 1, base_timestamp, latest, *producer, len(items))
    covered += deflate(attributes & CODEC_MASK, payload, level)
    before = _BEFORE_CRC.pack(partition_leader_epoch, MAGIC) + _CRC.pack(crc32c(covered))
    return _FRAME.pack(base_offset, len(before) + len(covered)) + before + covered


# -- records ---------------------------------------------------------------------------------------------------------


def _read_record(batch: Batch, data: bytes, position: int) -> tuple[Record, int]:
    length, position = read_varint(data, position)
    end = position + length
    if length < 1 or end > len(data):
        _invalid(f"a record of {length} bytes, but {len(data) - position} are left")
    timestamp_delta, position = read_varint(data, position + 1, bits=64)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    count, position = read_varint(data, position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        try:
            text = "" if name is None else name.decode()
        except UnicodeDecodeError:
            name = None
        if name is None:
            _invalid("a header's key is null or not UTF-8")
        content, position = _read_bytes(data, position, end)
        headers.append((text, content))
    if position != end or count < 0:
        _invalid(f"a record of {length} bytes has {count} headers and ends at {position}, not {end}")
    by_log = batch.attributes & LOG_APPEND_TIME
    timestamp = batch.max_timestamp if by_log else batch.base_timestamp + timestamp_delta
    return Record(batch.base_offset + offset_delta, timestamp, key, value, headers), end


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length == -1:
        return None, position
    if length < 0 or length > end - position:
        _invalid(f"a key, value or header of {length} bytes, but {end - position} are left")
    return data[position : position + length], position + length


def _write_record(timestamp: int, offset: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    parts = [b"\0", write_varint(timestamp), write_varint(offset), _write_bytes(key), _write_bytes(value)]
    parts.append(write_varint(len(headers)))
    for name, content in headers:
        parts += [_write_bytes(name.encode()), _write_bytes(content)]
    body = b"".join(parts)
    return write_varint(len(body)) + body


def _write_bytes(value: bytes | None) -> bytes:
    return write_varint(-1) if value is None else write_varint(len(value)) + value


def read_varint(data: Buffer, position: int, *, bits: int = 32) -> tuple[int, int]:
    """Decode a zigzag varint of at most `bits` bits (5 bytes for 32, 10 for 64) to (value, end). Raises INVALID_RECORD.
    """
    value = shift = 0
    while True:
        if position >= len(data):
            _invalid("a varint exceeds the data")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if value >> bits or shift - 7 >= bits:
            _invalid(f"a varint has more than {bits} bits")
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def write_varint(value: int) -> bytes:
    """Encode as zigzag (0, -1, 1, -2 become 0, 1, 2, 3), then in groups of seven bits, the lowest first."""
    rest = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _invalid(why: str) -> NoReturn:
    raise KafkaError(INVALID_RECORD, why)


# -- markers ---------------------------------------------------------------------------------------------------------

_PAIR: Final = Layout(">hh")  # version, type
_MARKER: Final = Layout(">hi")  # version, coordinator epoch
MARKERS: Final = ("ABORT", "COMMIT")
"""The names of control record types that end a transaction; other types are KRaft's."""


def read_marker(record: Record) -> tuple[int, int]:
    """Return (type, coordinator epoch) of the record in a control batch; the epoch is -1 if the type has none."""
    key, value = record.key or b"", record.value or b""
    if len(key) < _PAIR.size:
        _invalid(f"a control record has a key of {len(key)} bytes")
    type_ = _PAIR.unpack_from(key)[1]
    ends = type_ < len(MARKERS) and len(value) >= _MARKER.size
    return type_, _MARKER.unpack_from(value)[1] if ends else -1


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE: Final = _crc_table()


def crc32c(data: Buffer) -> int:
    """Compute a CRC-32C (Castagnoli, RFC 3720), byte by byte."""
    crc = 0xFFFFFFFF
    for byte in memoryview(data):
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
