"""What other encoders make of a batch's records: refused where it is produced, read where a Kafka has stored it.

Kafka's verdict is data: what the record reader of Apache Kafka 3.9.1's clients said to a batch with such a payload."""

from __future__ import annotations

import struct
import zlib

import pytest

from pybroker import core
from pybroker.errors import KafkaError
from pybroker.protocol.compression import compress, decompress_stored
from pybroker.replication import validation

BATCH = core.build_batch([(0, None, b"record %d" % i, []) for i in range(300)])
PLAIN = BATCH[61:]
RULES = validation.Rules(False, False, validation.NO_LIMIT, validation.NO_LIMIT, None, None)
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"


def of(codec: int, data: bytes = PLAIN) -> bytes:
    return compress(codec, data)


def gzip_with(flags: int) -> bytes:
    made = bytearray(zlib.compress(PLAIN, wbits=31))
    made[3] = flags
    return bytes(made)


def zstd_that_says(size: int, more: bytes = b"") -> bytes:
    """A frame whose header says another size than it has, and whose last block is empty: libzstd, with room for all
    of it, does not compare; with less room than the frame's content it does."""
    block = (len(PLAIN) << 3).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size) + block + PLAIN + b"\1\0\0" + more


LZ4_HEAD = of(LZ4)[:7]

CASES = {
    "gzip, a reserved flag 32": (GZIP, gzip_with(32), True),
    "gzip, a reserved flag 128": (GZIP, gzip_with(128), True),
    "gzip, zeros behind it": (GZIP, of(GZIP) + bytes(8), True),
    "gzip, bytes behind it": (GZIP, of(GZIP) + b"A" * 30, True),
    "gzip, the magic behind it": (GZIP, of(GZIP) + b"\x1f\x8b", True),
    "gzip, cut": (GZIP, of(GZIP)[:-9], False),
    "snappy, bytes behind it": (SNAPPY, of(SNAPPY) + bytes(3), True),
    "snappy, two frames": (SNAPPY, of(SNAPPY, PLAIN[:99]) + of(SNAPPY, PLAIN[99:]), True),
    "snappy, cut": (SNAPPY, of(SNAPPY)[:-1], False),
    "lz4, bytes behind it": (LZ4, of(LZ4) + b"A" * 7, True),
    "lz4, a last empty frame": (LZ4, of(LZ4) + of(LZ4, b""), True),
    "lz4, a last skippable frame": (LZ4, of(LZ4) + SKIPPABLE, True),
    "lz4, a block of no bytes first": (LZ4, LZ4_HEAD + struct.pack("<I", 1 << 31) + of(LZ4)[7:], False),
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
"""A payload, and whether Kafka reads it."""


@pytest.mark.parametrize("case", CASES)
def test_a_broker_refuses_it_where_it_is_produced(case: str) -> None:
    """Whatever Kafka does with it: some client cannot read it."""
    codec, payload, _ = CASES[case]
    with pytest.raises(KafkaError):
        validation.apply(RULES, core.rebuild_batch(BATCH, payload, codec), 0, "t-0")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_broker_takes_what_clients_send(codec: int) -> None:
    batch = core.rebuild_batch(BATCH, of(codec), codec)
    assert validation.apply(RULES, batch, 0, "t-0") is batch


@pytest.mark.parametrize("case", CASES)
def test_what_kafka_reads_is_read(case: str) -> None:
    """Records that a Kafka has stored are not lost; what it cannot read gives no other records."""
    codec, payload, read = CASES[case]
    try:
        made = decompress_stored(codec, payload, 1 << 20)
    except KafkaError:
        made = b""
    assert made == (PLAIN if read else b"")


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_what_comes_out_is_bounded_for_readers_too(codec: int) -> None:
    """At the limit it is read, above it is MESSAGE_TOO_LARGE, with what follows or without."""
    payload = of(codec)
    assert decompress_stored(codec, payload, len(PLAIN)) == PLAIN
    with pytest.raises(KafkaError) as refused:
        decompress_stored(codec, payload, len(PLAIN) - 1)
    assert refused.value.code == 10


def test_core_refuses_a_block_of_no_bytes_in_place() -> None:
    """An uncompressed block of length 0 is the end for Java."""
    payload = CASES["lz4, a block of no bytes first"][1]
    with pytest.raises(core.LogError):
        core.undo(LZ4, payload, 1 << 20)
