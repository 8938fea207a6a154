"""Each codec returns its input, agrees with other libraries, and cannot be made to fill memory."""

from __future__ import annotations

import gzip
import random
import re
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.cli.bench.load import text
from pybroker.errors import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE, KafkaError
from pybroker.model import CODECS
from pybroker.protocol.compression import compress, decompress
from tests.protocol.oracle import kafka
from tests.rows import with_each

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
COMPRESSED = [GZIP, SNAPPY, LZ4, ZSTD]

TEXT = b"".join(b'{"user": %d, "event": "click", "at": %d}\n' % (i * 7919 % 10007, i * 31) for i in range(5000))
NOISE = random.Random(1).randbytes(300_000)
KINDS = [b"", b"x", b"hello, hello", TEXT, NOISE, bytes(1 << 20)]


def refused(codec: int, data: bytes, max_bytes: int = 1 << 24) -> int:
    with pytest.raises(KafkaError) as error:
        decompress(codec, data, max_bytes)
    assert CODECS[codec] in error.value.message
    return error.value.code


@with_each("codec", range(5))
@with_each("data", KINDS, ids=len)
def test_what_went_in_comes_out(codec: int, data: bytes) -> None:
    """Data survives compression from bytes and views, with the limit at its size and not one byte below."""
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(b"ab" + packed)[2:], 1 << 21) == data
    assert decompress(codec, bytearray(packed), 1 << 21) == data
    assert decompress(codec, compress(codec, memoryview(b"ab" + data)[2:]), len(data)) == data
    assert decompress(codec, compress(codec, bytearray(data)), len(data)) == data
    if data:
        assert refused(codec, packed, len(data) - 1) == MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=300), cut=st.integers(0, 300), junk=st.binary(max_size=40))
@settings(max_examples=100, deadline=None, database=None)
def test_small_and_broken_input(codec: int, data: bytes, cut: int, junk: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, 300) == data
    for broken in (packed[:cut], packed[:cut] + junk, junk):
        try:
            assert len(decompress(codec, broken, 300)) <= 300
        except KafkaError as error:
            assert error.code in (CORRUPT_MESSAGE, MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_cut_data_is_not_taken_for_whole(codec: int) -> None:
    packed = compress(codec, TEXT)
    for end in [*range(40), len(packed) // 2, *range(len(packed) - 20, len(packed))]:
        if codec != SNAPPY or end != 16:  # the framing of no blocks at all
            assert refused(codec, packed[:end]) == CORRUPT_MESSAGE, end


@pytest.mark.parametrize("codec", COMPRESSED)
def test_what_follows_the_data_is_refused(codec: int) -> None:
    for junk in (b"\0", b"junk!", bytes(100)):
        assert refused(codec, compress(codec, TEXT) + junk) == CORRUPT_MESSAGE


def zstd_stream(data: bytes) -> bytes:
    """Compress as the Java client does: without a content size, and with the largest window."""
    parameters = zstandard.ZstdCompressionParameters.from_level(22, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


OTHERS: list[tuple[int, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = [
    (GZIP, gzip.compress, gzip.decompress),
    (GZIP, lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]), gzip.decompress),
    (GZIP, kafka.codec.gzip_encode, kafka.codec.gzip_decode),
    (SNAPPY, kafka.codec.snappy_encode, kafka.codec.snappy_decode),
    (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data)), kafka.codec.snappy_decode),
    (LZ4, kafka.codec.lz4_encode, kafka.codec.lz4_decode),
    (LZ4, lambda data: lz4.frame.compress(data, store_size=True, block_checksum=True), lz4.frame.decompress),
    (LZ4, lambda data: lz4.frame.compress(data, block_linked=True, compression_level=9), lz4.frame.decompress),
    (ZSTD, kafka.codec.zstd_encode, kafka.codec.zstd_decode),
    (ZSTD, zstd_stream, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
]


@with_each("data", KINDS[1:], ids=len)
@with_each("other", range(len(OTHERS)))
def test_other_libraries_agree(other: int, data: bytes) -> None:
    codec, pack, unpack = OTHERS[other]
    assert decompress(codec, pack(data), len(data)) == data
    for level in (None, 1, 9):
        assert bytes(unpack(compress(codec, data, level))) == data


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    """LZ4 blocks are independent, as Kafka refuses any other frame once it has a second block."""
    info = lz4.frame.get_frame_info(compress(LZ4, TEXT))
    assert not info["block_linked"]


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_wrong_checksum_is_seen(codec: int) -> None:
    """A wrong content checksum is refused, as other clients check it: a broker must not store what they refuse."""
    packed = bytearray(
        {
            GZIP: lambda: gzip.compress(TEXT),
            LZ4: lambda: lz4.frame.compress(TEXT, content_checksum=True),
            ZSTD: lambda: zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
        }[codec]()
    )
    assert decompress(codec, packed, len(TEXT)) == TEXT
    packed[-5 if codec == GZIP else -1] ^= 1
    assert refused(codec, bytes(packed)) == CORRUPT_MESSAGE


def test_a_level_is_heeded() -> None:
    for codec, low, high in ((GZIP, 1, 9), (LZ4, 1, 12), (ZSTD, 1, 19)):
        assert len(compress(codec, TEXT, high)) < len(compress(codec, TEXT, low))


@pytest.mark.parametrize("size", [1000, 16 << 10, 128 << 10, 1 << 20])
def test_smaller_tables_of_zstd_cost_little(size: int) -> None:
    """With smaller zstd tables, text batches are at most 2 % larger than with the library's own level 3."""
    words = text(size)
    own = len(zstandard.ZstdCompressor(level=3).compress(words))
    packed = compress(ZSTD, words)
    assert len(packed) <= own * 1.02
    assert decompress(ZSTD, packed, size) == words
    assert zstandard.frame_content_size(packed) == size  # readers allocate by it


BOMB_BYTES = 1 << 28


def _lz4_bomb() -> bytes:
    return lz4.frame.compress(bytes(BOMB_BYTES), store_size=False)


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (GZIP, lambda: zlib.compress(bytes(BOMB_BYTES), 1, 31)),
    "gzip of many members": (GZIP, lambda: gzip.compress(bytes(1 << 20)) * 64),
    "snappy blocks": (SNAPPY, lambda: compress(SNAPPY, bytes(1 << 22)) + compress(SNAPPY, bytes(1 << 22))[16:] * 8),
    "snappy raw": (SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(bytes(1 << 26)))),
    "lz4": (LZ4, _lz4_bomb),
    "lz4 with a size that lies": (LZ4, lambda: lz4.frame.compress(bytes(1 << 26), store_size=True)),
    "zstd": (ZSTD, lambda: zstandard.ZstdCompressor(level=1).compress(bytes(BOMB_BYTES))),
    "zstd of many frames": (ZSTD, lambda: zstandard.ZstdCompressor().compress(bytes(1 << 20)) * 64),
}


def test_a_great_many_members_take_their_time_and_no_more() -> None:
    """Decompressing gzip members, even empty ones, takes time in proportion to their number."""

    def seconds(members: int) -> float:
        data = gzip.compress(b"", mtime=0) * members
        started = time.thread_time()
        assert decompress(GZIP, data, 1 << 20) == b""
        return time.thread_time() - started

    few = min(seconds(10_000) for _ in range(3))
    assert seconds(160_000) < 16 * 4 * few


@pytest.mark.parametrize("sizes", [(0, 255, 256, 257), (511, 0, 512), (1 << 20, 1, (1 << 20) + 1)])
def test_members_of_any_size_follow_each_other(sizes: tuple[int, ...]) -> None:
    parts = [random.Random(size).randbytes(size) for size in sizes]
    data = b"".join(gzip.compress(part, mtime=0) for part in parts)
    assert decompress(GZIP, data, sum(sizes)) == b"".join(parts)
    for cut in (len(data) - 1, len(data) - 9):
        with pytest.raises(KafkaError, match="ends early"):
            decompress(GZIP, data[:cut], sum(sizes))


def resident_peak_bytes(*, reset: bool = False) -> int:
    """The peak memory of this process since the last reset; tracemalloc does not see the libraries' allocations."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


@with_each("name", BOMBS)
def test_a_bomb_is_refused_within_bounds(name: str) -> None:
    """A decompression bomb is refused at the limit of 4 MiB, with little more memory in use."""
    codec, make = BOMBS[name]
    bomb = make()
    limit = 1 << 22
    before = resident_peak_bytes(reset=True)
    assert refused(codec, bomb, limit) == MESSAGE_TOO_LARGE
    assert resident_peak_bytes() - before < 3 * limit + 10 * len(bomb)


@with_each(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff\x0f",  # a raw block that claims 4 GiB
        b"\x82SNAPPY\0",
        b"\x82SNAPPY\0" + bytes(7),
        compress(SNAPPY, b"")[:16] + b"\x7f\xff\xff\xff",
        compress(SNAPPY, b"")[:16] + b"\0\0\0\4" + b"\xf0\xff\xff\x07",  # 16 MiB from nothing
        compress(SNAPPY, b"")[:16] + b"\0\0",
    ],
)
def test_snappy_sizes_are_not_believed(data: bytes) -> None:
    tracemalloc.start()
    try:
        assert refused(SNAPPY, data) in (CORRUPT_MESSAGE, MESSAGE_TOO_LARGE)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_there_are_five_codecs() -> None:
    for codec in (5, 6, 7, -1):
        for call in (lambda c=codec: compress(c, b"x"), lambda c=codec: decompress(c, b"x", 10)):
            with pytest.raises(KafkaError) as error:
                call()
            assert error.value.code == UNSUPPORTED_COMPRESSION_TYPE
