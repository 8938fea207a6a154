"""Batches with a valid header and CRC whose records no client can read: each is one way to stop a consumer.

`SOUND` has the original batches, which every client reads.
"""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame
import zstandard

from tests.wire import batch, record, varint

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
VALUES = [b"one", b"two " * 40, b"three"]
PLAIN = b"".join(record(value, b"k", i) for i, value in enumerate(VALUES))
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def _gzip_named(data: bytes) -> bytes:
    packed = gzip.compress(data)
    return packed[:3] + b"\x08" + packed[4:10] + b"n\0" + packed[10:]


def _raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _snappy(data: bytes) -> bytes:
    blocks = [_raw_snappy(data[at : at + 64]) for at in range(0, len(data), 64)]
    return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _lz4(data: bytes, **how: bool | int) -> bytes:
    return lz4.frame.compress(data, **{"block_linked": False, "store_size": False, **how})


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "snappy": _snappy, "lz4": _lz4, "zstd": _zstd}


def of_three(payload: bytes, attributes: int = 0) -> bytes:
    """A batch that claims to hold VALUES."""
    return batch(VALUES, attributes=attributes, payload=payload)


def flipped(data: bytes, at: int, bits: int = 0xFF) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


def _body(*fields: bytes) -> bytes:
    """A record of these fields, valid or not, with its right length."""
    body = b"".join(fields)
    return varint(len(body)) + body


HEAD = b"\0" + varint(0) + varint(0)  # attributes, timestamp delta, offset delta 0
NULL = varint(-1)

SECTIONS: dict[str, bytes] = {
    "no record": b"",
    "garbage": bytes(range(150, 210)),
    "zeros": bytes(200),
    "a record fewer": PLAIN[: -len(record(VALUES[2], b"k", 2))],
    "a record more": PLAIN + record(b"four", b"k", 3),
    "bytes behind the last": PLAIN + b"xxx",
    "a zero behind the last": PLAIN + b"\0",
    "cut in the last": PLAIN[:-2],
    "a length too long": b"\x7f" + PLAIN[1:],
    "a length too short": varint(3) + PLAIN[1:],
    "a length of 2^31 - 1": varint(2**31 - 1) + PLAIN[1:],
    "a negative length": varint(-5) + PLAIN[1:],
    "a length without end": b"\xff" * 12 + PLAIN,
    "a delta that skips": record(b"a", b"k", 0) + record(b"b", b"k", 2) + record(b"c", b"k", 3),
    "a delta that repeats": record(b"a", b"k", 0) + record(b"b", b"k", 0) + record(b"c", b"k", 2),
    "deltas backwards": record(b"a", b"k", 2) + record(b"b", b"k", 1) + record(b"c", b"k", 0),
    "a first delta of 7": record(b"a", b"k", 7) + record(b"b", b"k", 1) + record(b"c", b"k", 2),
    "a negative delta": record(b"a", b"k", -1) + record(b"b", b"k", 1) + record(b"c", b"k", 2),
}
FIRST_OF_ONE: dict[str, bytes] = {
    "a key too long": _body(HEAD, varint(99), b"k", varint(1), b"v", varint(0)),
    "a key of 2^31 - 1": _body(HEAD, varint(2**31 - 1), b"k", varint(1), b"v", varint(0)),
    "a key of -2": _body(HEAD, varint(-2), varint(1), b"v", varint(0)),
    "a value too long": _body(HEAD, NULL, varint(99), b"v", varint(0)),
    "a value of -7": _body(HEAD, NULL, varint(-7), varint(0)),
    "no count of headers": _body(HEAD, NULL, varint(1), b"v"),
    "-1 headers": _body(HEAD, NULL, varint(1), b"v", varint(-1)),
    "2^31 - 1 headers": _body(HEAD, NULL, varint(1), b"v", varint(2**31 - 1)),
    "a header fewer": _body(HEAD, NULL, varint(1), b"v", varint(2), varint(1), b"h", NULL),
    "a header without key": _body(HEAD, NULL, varint(1), b"v", varint(1), NULL, NULL),
    "a header's value too long": _body(HEAD, NULL, varint(1), b"v", varint(1), varint(1), b"h", varint(9)),
    "bytes behind the headers": _body(HEAD, NULL, varint(1), b"v", varint(0), b"zz"),
    "a timestamp of eleven bytes": _body(b"\0" + b"\xff" * 10 + b"\x01", varint(0), NULL, NULL, varint(0)),
    "an offset of six bytes": _body(b"\0", varint(0), b"\xff" * 5 + b"\x01", NULL, NULL, varint(0)),
}


def _of_codec(name: str) -> Iterator[tuple[str, bytes]]:
    """The compressed data, with a fault in itself."""
    packed = PACK[name](PLAIN)
    yield "never compressed", PLAIN
    yield "garbage", bytes(range(150, 210))
    yield "nothing", b""
    yield "zeros", bytes(200)
    yield "half", packed[: len(packed) // 2]
    yield "all but a byte", packed[:-1]
    yield "bytes behind it", packed + b"\0\1\2\3"
    yield "another codec's", PACK["gzip" if name != "gzip" else "zstd"](PLAIN)


def _of_gzip() -> Iterator[tuple[str, bytes]]:
    packed = gzip.compress(PLAIN)
    yield "a wrong CRC", flipped(packed, -8)
    yield "a wrong size", flipped(packed, -1)
    yield "a method that is none", flipped(packed, 2)
    yield "a reserved flag", flipped(packed, 3, 0x80)
    yield "half of a second member", packed + packed[:15]
    yield "no trailer", packed[:-8]
    yield "raw deflate", zlib.compress(PLAIN, wbits=-15)
    yield "zlib's wrapper", zlib.compress(PLAIN)
    yield "a distance past the start", gzip.compress(PLAIN)[:10] + bytes.fromhex("4b040200") + packed[-8:]


def _of_snappy() -> Iterator[tuple[str, bytes]]:
    raw = _raw_snappy(PLAIN)
    yield "raw, a size too large", varint_unsigned(len(PLAIN) + 1) + raw[2:]
    yield "raw, a size of 4 GiB", b"\xff\xff\xff\xff\x0f" + raw[2:]
    yield "raw, a copy from before the start", b"\x08\x01\xff" + b"\x0cabcd"
    yield "raw, a copy from nowhere", b"\x08\x0cabcd\x01\x00"
    yield "raw, a literal too long", b"\x08\xf0\xff"
    yield "a block too long", XERIAL + struct.pack(">i", 9999) + raw
    yield "a block of negative length", XERIAL + struct.pack(">i", -1) + raw
    yield "a block and half a length", XERIAL + struct.pack(">i", len(raw)) + raw + b"\0\0"
    yield "a header and nothing", XERIAL


def _with_header(packed: bytes, flags: int = 0, block_size: int = 0) -> bytes:
    """A frame with more bits in its header, and with the right header checksum."""
    head = bytes([packed[4] | flags, packed[5] | block_size])
    return packed[:4] + head + bytes([xxhash32(head) >> 8 & 0xFF]) + packed[7:]


def xxhash32(data: bytes) -> int:
    """The xxhash32 of less than four bytes."""
    made = 374761393 + len(data)
    for byte in data:
        made = (made + byte * 374761393) & 0xFFFFFFFF
        made = ((made << 11 | made >> 21) & 0xFFFFFFFF) * 2654435761 & 0xFFFFFFFF
    made = (made ^ made >> 15) * 2246822519 & 0xFFFFFFFF
    made = (made ^ made >> 13) * 3266489917 & 0xFFFFFFFF
    return made ^ made >> 16


def _of_lz4() -> Iterator[tuple[str, bytes]]:
    packed = _lz4(PLAIN)
    assert _with_header(packed) == packed
    yield "a reserved flag", _with_header(packed, flags=2)
    yield "a reserved bit before the block size", _with_header(packed, block_size=0x80)
    yield "a reserved bit behind the block size", _with_header(packed, block_size=1)
    yield "a wrong header checksum", flipped(packed, 6)
    yield "no end mark", packed[:-4]
    yield "a damaged block", packed[:11] + b"\xff\xff\xff" + packed[14:]
    yield "a wrong checksum of the content", flipped(_lz4(PLAIN, content_checksum=True), -1)
    yield "a wrong checksum of a block", flipped(_lz4(PLAIN, block_checksum=True), -5)
    yield "a wrong content size", _lz4(PLAIN + b"x", store_size=True)[:15] + _lz4(PLAIN, store_size=True)[15:]
    yield "a block that ends early", packed[:7] + struct.pack("<I", 3) + packed[11:14] + bytes(4)


def _of_zstd() -> Iterator[tuple[str, bytes]]:
    packed = _zstd(PLAIN)
    yield "a wrong checksum", flipped(packed, -1)
    yield "a reserved bit", flipped(packed, 4, 0x08)
    yield "a dictionary that nobody has", packed[:4] + bytes([packed[4] | 1]) + b"\x07" + packed[5:]
    yield "a block type that is none", packed[:6] + bytes([packed[6] | 0x06]) + packed[7:]
    yield "a frame to be skipped, alone", struct.pack("<II", 0x184D2A50, 8) + bytes(8)


OF_CODEC = {"gzip": _of_gzip, "snappy": _of_snappy, "lz4": _of_lz4, "zstd": _of_zstd}


def zstd_head(size: int, window_log: int) -> bytes:
    """A frame header that states the content's size."""
    return b"\x28\xb5\x2f\xfd\x80" + bytes([window_log - 10 << 3]) + struct.pack("<I", size)


def zstd_block(kind: int, size: int, data: bytes, *, last: bool = True) -> bytes:
    """A zstd block of `kind` 0 raw, 1 a run of one byte, 2 compressed."""
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + data


def in_one_block(data: bytes, window_log: int) -> bytes:
    return zstd_head(len(data), window_log) + zstd_block(0, len(data), data)


def zeros_in_one_block(size: int, *, compressed: bool) -> bytes:
    """A record whose last `size` bytes are zeros, in a separate block: a run, or one sequence that repeats a byte."""
    blank = bytes(size - 1)  # one zero more is the header count
    plain = record(blank, b"k")
    head = plain[: plain.index(blank)]
    sequence = b"\x08\0\x01\x54\x01\x00\x34" + struct.pack("<H", max(0, size - 1 - 65539)) + b"\x01"
    block = zstd_block(2, len(sequence), sequence) if compressed else zstd_block(1, size, b"\0")
    return zstd_head(len(plain), 20) + zstd_block(0, len(head), head, last=False) + block


def from_afar(size: int, window_log: int, back: int) -> bytes:
    """A record of random bytes in raw blocks, followed by 99 bytes that are copied from this far back."""
    value = random.Random(2).randbytes(size)
    plain = record(value + value[-back:][:99], b"k")
    before, most = plain[:-100], 1 << window_log
    blocks = [before[at : at + most] for at in range(0, len(before), most)]
    value_of_offset = back + 3
    code = value_of_offset.bit_length() - 1  # its first bit ends the stream; behind it five zeros, for 99 bytes
    stream = (value_of_offset << 5).to_bytes((code + 13) // 8, "little")
    sequence = b"\x08\0\x01\x54\0" + bytes([code, 42]) + stream
    raw = b"".join(zstd_block(0, len(block), block, last=False) for block in blocks)
    return zstd_head(len(plain), window_log) + raw + zstd_block(2, len(sequence), sequence)


def varint_unsigned(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def _all() -> Iterator[tuple[str, bytes]]:
    for name, section in SECTIONS.items():
        yield f"plain: {name}", of_three(section)
        for codec, number in CODECS.items():
            yield f"{codec}: {name} within", of_three(PACK[codec](section), number)
    for name, section in FIRST_OF_ONE.items():
        yield f"plain: {name}", batch([b"v"], payload=section)
        for codec, number in CODECS.items():
            yield f"{codec}: {name} within", batch([b"v"], attributes=number, payload=PACK[codec](section))
    for codec, number in CODECS.items():
        for name, section in (*_of_codec(codec), *OF_CODEC[codec]()):
            yield f"{codec}: {name}", of_three(section, number)


LONG = record(random.Random(1).randbytes(70_000), b"k")
"""A record larger than a block."""
BLOCK = 128 << 10
"""The largest content of a zstd block, in bytes."""


def _of_one(payload: bytes, codec: int) -> bytes:
    return batch([b""], attributes=codec, payload=payload)


POISONS: dict[str, bytes] = dict(_all()) | {
    "lz4: linked blocks": _of_one(lz4.frame.compress(LONG, block_linked=True), 3),
    "zstd: a window of 256 MiB": _of_one(in_one_block(LONG, 28), 4),
    "zstd: a block larger than its window": _of_one(in_one_block(LONG, 16), 4),
    "zstd: a raw block of more than 128 KiB": _of_one(in_one_block(record(bytes(BLOCK), b"k"), 20), 4),
    "zstd: a run of more than 128 KiB": _of_one(zeros_in_one_block(BLOCK + 1, compressed=False), 4),
    "zstd: a match from beyond its window": _of_one(from_afar(40_000, 10, 30_000), 4),
    "zstd: a sequence of more than 128 KiB": _of_one(zeros_in_one_block(BLOCK + 1, compressed=True), 4),
}
SOUND: dict[str, bytes] = {
    "plain": of_three(PLAIN),
    "raw snappy": of_three(_raw_snappy(PLAIN), 2),
    "two members of gzip": of_three(gzip.compress(PLAIN[:20]) + gzip.compress(PLAIN[20:]), 1),
    "gzip with a name": of_three(_gzip_named(PLAIN), 1),
    "stored gzip": of_three(gzip.compress(PLAIN, 0), 1),
    "lz4 with every checksum": of_three(_lz4(PLAIN, content_checksum=True, block_checksum=True, store_size=True), 3),
    "zstd without size": of_three(zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN), 4),
    "zstd, a window of 128 MiB": _of_one(in_one_block(LONG, 27), 4),
    "zstd, a window of 128 KiB": _of_one(in_one_block(LONG, 17), 4),
    "zstd, a match from afar": _of_one(from_afar(40_000, 16, 30_000), 4),
    "zstd, a run of 128 KiB": _of_one(zeros_in_one_block(BLOCK, compressed=False), 4),
    "zstd, a sequence of 128 KiB": _of_one(zeros_in_one_block(BLOCK, compressed=True), 4),
    **{name: of_three(pack(PLAIN), CODECS[name]) for name, pack in PACK.items()},
}
