"""Records that other encoders compressed are refused in a Produce if invalid, and read if a Kafka has stored them.

Kafka's verdict is data: the result of the record reader of Apache Kafka 3.9.1's clients for such a payload.
"""

from __future__ import annotations

import contextlib
import struct
import zlib

import lz4.block
import lz4.frame
import pytest

from pybroker import core
from pybroker.errors import CORRUPT_MESSAGE, KafkaError
from pybroker.protocol.compression import compress, decompress_stored, open_batch
from pybroker.replication import validation
from tests.rows import with_each

BATCH = core.build_batch([(0, None, b"record %d" % i, []) for i in range(300)])
PLAIN = BATCH[61:]
RULES = validation.RecordRules(False, False, validation.NO_LIMIT, validation.NO_LIMIT, None, None)
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LZ4_MAGIC = b"\x04\x22\x4d\x18"
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"


def of(codec: int, data: bytes = PLAIN) -> bytes:
    return compress(codec, data)


def gzip_with(flags: int, data: bytes = PLAIN) -> bytes:
    made = bytearray(zlib.compress(data, wbits=31))
    made[3] = flags
    return bytes(made)


def gzip_headed(flags: int, fields: bytes, crc: bool | None = None) -> bytes:
    """A gzip member with these header fields; `crc`: with a header checksum that is right or wrong."""
    head = b"\x1f\x8b\x08" + bytes([flags | (crc is not None) << 1]) + bytes(6) + fields
    if crc is not None:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF ^ (not crc))
    return head + zlib.compress(PLAIN, wbits=31)[10:]


def lz4_of(*blocks: bytes, size: int | None = None, checksum: bytes = b"") -> bytes:
    """An LZ4 frame of independent compressed blocks that declares this content size."""
    flags = 0x60 | (size is not None) << 3 | bool(checksum) << 2
    head = bytes([flags, 0x40]) + (b"" if size is None else struct.pack("<Q", size))
    parts = [struct.pack("<I", len(block)) + block for block in blocks]
    return LZ4_MAGIC + head + xxhash_byte(head) + b"".join(parts) + bytes(4) + checksum


def xxhash_byte(head: bytes) -> bytes:
    """The frame's header checksum that the reference library accepts."""
    for byte in range(256):
        with contextlib.suppress(RuntimeError):
            lz4.frame.get_frame_info(LZ4_MAGIC + head + bytes([byte]))
            return bytes([byte])
    raise AssertionError(head)


def block(data: bytes) -> bytes:
    return bytes(lz4.block.compress(data, store_size=False))


def zstd_that_says(size: int, more: bytes = b"") -> bytes:
    """A zstd frame with an empty last block that declares a false content size.

    libzstd with room for the declared size does not compare; with less room than the content it does.
    """
    block = (len(PLAIN) << 3).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size) + block + PLAIN + b"\1\0\0" + more


LZ4_HEAD = of(LZ4)[:7]

CASES = {
    "gzip, a reserved flag 32": (GZIP, gzip_with(32), True),
    "gzip, a reserved flag 128": (GZIP, gzip_with(128), True),
    "gzip, zeros behind it": (GZIP, of(GZIP) + bytes(8), True),
    "gzip, bytes behind it": (GZIP, of(GZIP) + b"A" * 30, True),
    "gzip, the magic behind it": (GZIP, of(GZIP) + b"\x1f\x8b", True),
    "gzip, reserved flags of a second member": (GZIP, of(GZIP, PLAIN[:999]) + gzip_with(0xE0, PLAIN[999:]), True),
    "gzip, a second empty member with reserved flags": (GZIP, of(GZIP) + gzip_with(0x80, b""), True),
    "gzip, a head with a wrong checksum behind it": (GZIP, of(GZIP) + gzip_headed(0, b"", crc=False), True),
    "gzip, a name without end behind it": (GZIP, of(GZIP) + gzip_with(0x08)[:10] + b"A" * 300, True),
    "gzip, a comment without end behind it": (GZIP, of(GZIP) + gzip_with(0x10)[:10] + b"A" * 300, True),
    "gzip, an extra field without end behind it": (GZIP, of(GZIP) + gzip_with(0x04)[:10] + b"\xff" * 30, True),
    "gzip, a head of half a checksum behind it": (GZIP, of(GZIP) + gzip_with(0x0A)[:10] + b"A" * 9 + b"\0B", True),
    "gzip, a second member that is damaged": (GZIP, of(GZIP) + gzip_with(0)[:10] + b"\xff" * 30, False),
    "gzip, a second member that is cut": (GZIP, of(GZIP) + of(GZIP)[:-9], False),
    "gzip, reserved flags and a right checksum": (GZIP, gzip_headed(0xE0, b"", crc=True), True),
    "gzip, all flags and fields": (GZIP, gzip_headed(0xFD, b"\2\0\0\0" + b"n" * 300 + b"\0c\0", crc=True), True),
    "gzip, a wrong checksum of the header": (GZIP, gzip_headed(0xE0, b"", crc=False), False),
    "gzip, a name without end": (GZIP, gzip_with(0x88)[:10] + b"A" * 300, False),
    "gzip, another method": (GZIP, b"\x1f\x8b\x07" + of(GZIP)[3:], False),
    "gzip, cut": (GZIP, of(GZIP)[:-9], False),
    "snappy, bytes behind it": (SNAPPY, of(SNAPPY) + bytes(3), True),
    "snappy, two frames": (SNAPPY, of(SNAPPY, PLAIN[:99]) + of(SNAPPY, PLAIN[99:]), True),
    "snappy, cut": (SNAPPY, of(SNAPPY)[:-1], False),
    "lz4, bytes behind it": (LZ4, of(LZ4) + b"A" * 7, True),
    "lz4, a last empty frame": (LZ4, of(LZ4) + of(LZ4, b""), True),
    "lz4, a last skippable frame": (LZ4, of(LZ4) + SKIPPABLE, True),
    "lz4, a block of no bytes first": (LZ4, LZ4_HEAD + struct.pack("<I", 1 << 31) + of(LZ4)[7:], False),
    "lz4, a compressed block of no bytes first": (LZ4, lz4_of(b"\0", block(PLAIN)), False),
    "lz4, a compressed block of no bytes between": (LZ4, lz4_of(block(PLAIN[:999]), b"\0", block(PLAIN[999:])), False),
    "lz4, a compressed block of no bytes last": (LZ4, lz4_of(block(PLAIN), b"\0"), True),
    "lz4, a compressed block of no bytes, cut": (LZ4, lz4_of(block(PLAIN), b"\0", checksum=b"A")[:-5], True),
    "lz4, says 2**63 bytes": (LZ4, lz4_of(block(PLAIN), size=1 << 63), True),
    "lz4, says 2**64 - 1 bytes": (LZ4, lz4_of(block(PLAIN), size=(1 << 64) - 1), True),
    "lz4, says 2**63 - 1 bytes": (LZ4, lz4_of(block(PLAIN), size=(1 << 63) - 1), True),
    "lz4, says fewer bytes": (LZ4, lz4_of(block(PLAIN), size=5), True),
    "lz4, no end mark": (LZ4, of(LZ4)[:-4], False),
    "zstd, its magic behind it": (ZSTD, of(ZSTD) + b"\x28\xb5\x2f\xfd", True),
    "zstd, a skippable frame that is cut": (ZSTD, of(ZSTD) + SKIPPABLE[:-1], True),
    "zstd, bytes behind it": (ZSTD, of(ZSTD) + b"A" * 8, False),
    "zstd, cut": (ZSTD, of(ZSTD)[:-2], False),
    "zstd, says 0 bytes": (ZSTD, zstd_that_says(0), False),
    "zstd, says fewer bytes": (ZSTD, zstd_that_says(len(PLAIN) - 1), False),
    "zstd, says 15000 bytes": (ZSTD, zstd_that_says(15_000), False),
    "zstd, says 17000 bytes": (ZSTD, zstd_that_says(17_000), True),
    "zstd, says 100000 bytes, one more frame": (ZSTD, zstd_that_says(100_000, of(ZSTD, b"")), True),
}
"""(codec, payload, True if Kafka reads it)"""


@with_each("case", CASES)
def test_a_broker_refuses_it_where_it_is_produced(case: str) -> None:
    """A broker refuses an invalid payload in a Produce even if Kafka accepts it, as some client cannot read it."""
    codec, payload, _ = CASES[case]
    with pytest.raises(KafkaError):
        validation.apply(RULES, core.rebuild_batch(BATCH, payload, codec), 0, "t-0")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_broker_takes_what_clients_send(codec: int) -> None:
    batch = core.rebuild_batch(BATCH, of(codec), codec)
    assert validation.apply(RULES, batch, 0, "t-0") is batch


@with_each("case", CASES)
def test_what_kafka_reads_is_read(case: str) -> None:
    """Stored records that Kafka can read are read, and those that it cannot read are an error."""
    codec, payload, read = CASES[case]
    batch = core.rebuild_batch(BATCH, payload, codec)
    header = core.check_batch(batch)
    if read:
        assert decompress_stored(codec, payload, 1 << 20) == PLAIN
        assert len(list(core.walk_records(open_batch(batch, header), header))) == 300
        return
    with pytest.raises((KafkaError, core.LogError)):
        list(core.walk_records(open_batch(batch, header), header))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_what_comes_out_is_bounded_for_readers_too(codec: int) -> None:
    """Decompressed data at the reader's limit is read; above the limit it is MESSAGE_TOO_LARGE."""
    payload = of(codec)
    assert decompress_stored(codec, payload, len(PLAIN)) == PLAIN
    with pytest.raises(KafkaError) as refused:
        decompress_stored(codec, payload, len(PLAIN) - 1)
    assert refused.value.code == 10


@pytest.mark.parametrize("flags", [0x02, 0x04, 0x08, 0x10, 0xFE])
def test_a_gzip_header_that_is_cut_anywhere_is_refused(flags: int) -> None:
    """A gzip header that is cut anywhere is refused at the start of the data; after a member it ends the data."""
    fields = b"\2\0xx" * (flags >> 2 & 1) + b"name\0" * (flags >> 3 & 1) + b"comment\0" * (flags >> 4 & 1)
    whole = gzip_headed(flags & ~2, fields, crc=True if flags & 2 else None)
    assert decompress_stored(GZIP, whole, len(PLAIN)) == PLAIN
    for size in range(whole.index(zlib.compress(PLAIN, wbits=31)[10:])):
        with pytest.raises(KafkaError) as refused:
            decompress_stored(GZIP, whole[:size], len(PLAIN))
        assert refused.value.code == CORRUPT_MESSAGE
        assert decompress_stored(GZIP, of(GZIP) + whole[:size], len(PLAIN)) == PLAIN


@pytest.mark.parametrize("case", [case for case in CASES if "block of no bytes" in case])
def test_core_refuses_a_block_of_no_bytes_in_place(case: str) -> None:
    """An LZ4 block without bytes is refused in core, as Java takes it for the end."""
    with pytest.raises(core.LogError):
        core.undo(LZ4, CASES[case][1], 1 << 20)
