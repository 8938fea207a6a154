"""Record batches in plain Python, written from the format's description: the reference model for core."""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Header = tuple[str, bytes | None]
Record = tuple[int, int, bytes | None, bytes | None, list[Header]]

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_FROM = 21
LENGTH_BYTES = 12
CORRUPT, TOO_LARGE, TIMESTAMP, OLD_FORMAT, INVALID = 2, 10, 32, 43, 87


class Refused(Exception):
    """A batch or record that a broker must refuse; the argument is Kafka's error code, or "short"."""


class Batch(NamedTuple):
    """A batch header, its fields in wire order."""

    base_offset: int = 0
    batch_length: int = 0
    partition_leader_epoch: int = -1
    magic: int = 2
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 1


def crc32c(data: bytes, initial: int = 0) -> int:
    """Compute CRC-32C bit by bit, reflected (RFC 3720 B.4)."""
    c = initial ^ 0xFFFFFFFF
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF


def seal(batch: Batch, payload: bytes) -> bytes:
    """Pack a header and its records, with the right length and CRC."""
    batch = batch._replace(batch_length=HEADER.size - LENGTH_BYTES + len(payload))
    unsealed = HEADER.pack(*batch) + payload
    return HEADER.pack(*batch._replace(crc=crc32c(unsealed[CRC_FROM:]))) + payload


def frame(data: bytes) -> Batch:
    """The header at the start of data, once its magic and length allow reading it."""
    if len(data) < CRC_FROM - 4:
        raise Refused("short")
    if data[16] != 2:
        raise Refused(OLD_FORMAT if data[16] < 2 else CORRUPT)
    (length,) = struct.unpack_from(">i", data, 8)
    if length + LENGTH_BYTES < HEADER.size:
        raise Refused(CORRUPT)
    if length + LENGTH_BYTES > len(data):
        raise Refused("short")
    return Batch(*HEADER.unpack_from(data))


def parse(data: bytes, *, check_crc: bool = True) -> Batch:
    """The batch at the start of data, checked as a broker checks any batch: produced, replicated or compacted."""
    batch = frame(data)
    if check_crc and crc32c(data[CRC_FROM : LENGTH_BYTES + batch.batch_length]) != batch.crc:
        raise Refused(CORRUPT)
    if not 0 <= batch.base_offset <= 2**63 - 2**31:
        raise Refused(INVALID)
    if batch.last_offset_delta < 0 or not 0 <= batch.count <= batch.last_offset_delta + 1:
        raise Refused(INVALID)
    return batch


def check_produced(data: bytes, size_max: int = 0) -> Batch:
    """Check a batch that a client sends, in Kafka's order."""
    if not data:
        raise Refused(INVALID)
    try:
        batch = frame(data)
    except Refused as refused:
        raise Refused(CORRUPT if refused.args[0] == "short" else refused.args[0]) from None
    if LENGTH_BYTES + batch.batch_length < len(data) or batch.base_offset != 0:
        raise Refused(INVALID)
    if size_max and len(data) > size_max:
        raise Refused(TOO_LARGE)
    parse(data)
    codec, payload = batch.attributes & 7, len(data) - HEADER.size
    if batch.count != batch.last_offset_delta + 1 or batch.attributes & 0x20:
        raise Refused(INVALID)
    if batch.attributes & 0x08:
        raise Refused(TIMESTAMP)
    if batch.attributes & 0x40 or codec > 4 or batch.count * 7 > payload * (1, 1032, 22, 255, 32768)[codec]:
        raise Refused(INVALID)
    if batch.producer_id < -1 or (batch.producer_id >= 0 and min(batch.producer_epoch, batch.base_sequence) < 0):
        raise Refused(INVALID)
    if batch.attributes & 0x10 and batch.producer_id == -1:
        raise Refused(INVALID)
    return batch


def varint(n: int, bits: int = 64) -> bytes:
    """Encode as a zigzag varint."""
    n = (n << 1 ^ n >> bits - 1) & (1 << bits) - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def read_varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return (value, offset behind it)."""
    raw = shift = 0
    while True:
        if at >= len(data):
            raise Refused(INVALID)
        raw |= (data[at] & 0x7F) << shift
        at += 1
        if raw >> bits or shift > bits:
            raise Refused(INVALID)
        if data[at - 1] < 0x80:
            return raw >> 1 ^ -(raw & 1), at
        shift += 7


def _read_nullable(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at, 32)
    if size == -1:
        return None, at
    if size < 0 or at + size > len(data):
        raise Refused(INVALID)
    return data[at : at + size], at + size


def _read_record(data: bytes, batch: Batch) -> Record:
    if not data:
        raise Refused(INVALID)
    timestamp_delta, at = read_varint(data, 1, 64)
    offset_delta, at = read_varint(data, at, 32)
    key, at = _read_nullable(data, at)
    value, at = _read_nullable(data, at)
    count, at = read_varint(data, at, 32)
    if count < 0 or count > len(data):
        raise Refused(INVALID)
    headers: list[Header] = []
    for _ in range(count):
        name, at = _read_nullable(data, at)
        content, at = _read_nullable(data, at)
        if name is None:
            raise Refused(INVALID)
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    if at != len(data):
        raise Refused(INVALID)
    timestamp = batch.max_timestamp if batch.attributes & 8 else batch.base_timestamp + timestamp_delta
    timestamp = (timestamp + 2**63) % 2**64 - 2**63
    return batch.base_offset + offset_delta, timestamp, key, value, headers


def walk(payload: bytes, batch: Batch) -> Iterator[Record]:
    """The records of an uncompressed payload."""
    at = 0
    for _ in range(batch.count):
        size, at = read_varint(payload, at, 32)
        if size < 0 or at + size > len(payload):
            raise Refused(INVALID)
        yield _read_record(payload[at : at + size], batch)
        at += size
    if at != len(payload):
        raise Refused(INVALID)


def faults(
    payload: bytes, batch: Batch, need_keys: bool, timestamp_min: int, timestamp_max: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """The expected result of check_records."""
    found, index, last, records = [], 0, -1, walk(payload, batch)
    while True:
        try:
            offset, timestamp, key, _, _ = next(records)
        except StopIteration:
            return len(found), found
        except Refused:
            return 1, [(index, 1, -1)]
        delta = offset - batch.base_offset
        if not last < delta <= batch.last_offset_delta:
            return 1, [(index, 1, -1)]
        own = not batch.attributes & 8
        if need_keys and key is None:
            found.append((index, 2, timestamp if own else -1))
        elif own and timestamp != -1 and not timestamp_min <= timestamp <= timestamp_max:
            found.append((index, 3, timestamp))
        index, last = index + 1, delta


def _nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def records(entries: Sequence[tuple[int, bytes | None, bytes | None, Sequence[Header]]], base_timestamp: int) -> bytes:
    """Build an uncompressed records section."""
    out = b""
    for i, (timestamp, key, value, headers) in enumerate(entries):
        body = b"\0" + varint(timestamp - base_timestamp) + varint(i) + _nullable(key) + _nullable(value)
        body += varint(len(headers))
        for name, content in headers:
            body += _nullable(name.encode("utf-8", "surrogateescape")) + _nullable(content)
        out += varint(len(body)) + body
    return out
