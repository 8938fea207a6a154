"""Batches that core accepts can be read by the reference model and kafka-python, in every form of every codec."""

from __future__ import annotations

import gzip
import random
import struct
import time
import warnings
import zlib
from collections.abc import Callable

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pybroker.core import check_batch
from pybroker.errors import KafkaError
from pybroker.protocol.compression import compress, open_batch
from tests.core import probes, slow_batch
from tests.core.slow_batch import Batch
from tests.poisons import POISONS, SOUND

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    from kafka.errors import CorruptRecordError
    from kafka.record.default_records import DefaultRecordBatch

pytestmark = pytest.mark.xdist_group("probe")

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LIMITS = {GZIP: 96 << 10, SNAPPY: 256 << 10, LZ4: 256 << 10, ZSTD: 192 << 10}
"""The largest size to which the connection's thread decompresses a batch."""

blobs = (
    st.none()
    | st.binary(max_size=40)
    | st.builds(lambda b, n: b * n, st.binary(min_size=1, max_size=9), st.integers(1, 300))
)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
entries = st.tuples(st.integers(0, 2**35), blobs, blobs, headers)
sections = st.lists(entries, min_size=1, max_size=20)
chances = st.randoms(use_true_random=False)


def in_gzip(rng: random.Random, data: bytes) -> bytes:
    packer = zlib.compressobj(rng.randrange(10), zlib.DEFLATED, 31, rng.randrange(1, 10), rng.randrange(5))
    half = rng.randrange(len(data) + 1)
    first = packer.compress(data[:half]) + packer.flush(rng.choice([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]))
    return first + packer.compress(data[half:]) + packer.flush()


def in_snappy(rng: random.Random, data: bytes) -> bytes:
    size = rng.choice([1 << 15, 100, len(data) + 1])
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + size])) for at in range(0, len(data), size)]
    if len(blocks) == 1 and rng.random() < 0.5:
        return blocks[0]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


def in_lz4(rng: random.Random, data: bytes) -> bytes:
    return lz4.frame.compress(
        data, block_linked=False, block_size=rng.choice([4, 5, 6, 7]), compression_level=rng.choice([-5, 0, 3, 9]),
        store_size=rng.random() < 0.5, block_checksum=rng.random() < 0.5, content_checksum=rng.random() < 0.5,
    )  # fmt: skip


def in_zstd(rng: random.Random, data: bytes) -> bytes:
    how = {"write_checksum": rng.random() < 0.5, "write_content_size": rng.random() < 0.5}
    return zstandard.ZstdCompressor(rng.choice([-5, 1, 3, 9]), **how).compress(data)


PACK: dict[int, Callable[[random.Random, bytes], bytes]] = {
    GZIP: in_gzip,
    SNAPPY: in_snappy,
    LZ4: in_lz4,
    ZSTD: in_zstd,
}


def sealed(count: int, payload: bytes, codec: int = 0) -> bytes:
    """Build a batch with a header that a client may send."""
    return slow_batch.seal(Batch(attributes=codec, count=count, last_offset_delta=count - 1), payload)


def taken(batch: bytes) -> bool:
    """True if a reactor would append it."""
    status, made = probes.load().look_inside(batch)
    return status == 0 and (made >= 0 or not batch[22] & 7)


def readable(batch: bytes) -> bool:
    """True if the codec's library decompresses it and the model finds each record in place."""
    header = check_batch(batch)
    try:
        plain = bytes(open_batch(batch, header))
        records = list(slow_batch.walk(plain, slow_batch.parse(batch, check_crc=False)))
    except (KafkaError, slow_batch.Refused):
        return False
    return [offset for offset, *_ in records] == list(range(header.count))


def odd_attributes(batch: bytes) -> bool:
    """True if a record's attributes are 128 or more: Kafka ignores the byte, kafka-python reads it as a varint."""
    header = check_batch(batch)
    plain, at = bytes(open_batch(batch, header)), 0
    for _ in range(header.count):
        size, at = slow_batch.read_varint(plain, at, 32)
        if plain[at] & 0x80:
            return True
        at += size
    return False


def assert_sound(batch: bytes) -> None:
    """Check that an accepted batch can be read, here and by kafka-python."""
    if taken(batch):
        assert readable(batch)
        if odd_attributes(batch):
            return
        try:
            assert len(list(DefaultRecordBatch(batch))) == check_batch(batch).count
        except CorruptRecordError as problem:  # a header name that is not UTF-8, which Kafka accepts
            assert "UnicodeDecodeError" in str(problem)


@given(sections, chances, st.sampled_from([0, *PACK]))
def test_what_clients_send_is_taken_in_every_form(records: list, rng: random.Random, codec: int) -> None:
    plain = slow_batch.records(records, 0)
    payload = PACK[codec](rng, plain) if codec else plain
    assert taken(sealed(len(records), payload, codec)) == (len(plain) <= LIMITS.get(codec, 1 << 30))


@given(sections, chances)
def test_changed_records_are_taken_only_if_they_can_be_read(records: list, rng: random.Random) -> None:
    """Changed uncompressed records are accepted exactly if the model can read them."""
    plain = bytearray(slow_batch.records(records, 0))
    for _ in range(rng.randrange(1, 4)):
        plain[rng.randrange(len(plain))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.2:
        del plain[rng.randrange(len(plain)) :]
    batch = sealed(len(records), bytes(plain))
    if probes.load().look_inside(batch)[0] == 87 and len(plain) < 7 * len(records):
        return  # a count that the bytes cannot hold is refused first
    assert taken(batch) == readable(batch)
    assert_sound(batch)


@pytest.mark.parametrize("codec", PACK)
@given(sections, chances)
def test_changed_bytes_are_taken_only_if_they_can_be_read(codec: int, records: list, rng: random.Random) -> None:
    """Changed compressed records, inside the codec's data or in it, are accepted only if they can be read."""
    plain = bytearray(slow_batch.records(records, 0))
    if rng.random() < 0.3:
        plain[rng.randrange(len(plain))] ^= 1 << rng.randrange(8)
    payload = bytearray(PACK[codec](rng, bytes(plain)))
    for _ in range(rng.randrange(4)):
        payload[rng.randrange(len(payload))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.2:
        del payload[rng.randrange(len(payload)) :]
    if rng.random() < 0.1:
        payload += rng.randbytes(rng.randrange(1, 9))
    assert_sound(sealed(len(records), bytes(payload), codec))


@pytest.mark.parametrize(
    ("frame", "library_says"),
    [
        ("28b52ffd0400c50000709c01008001000184010100004100030147dd42377c0544f5d7057e", "corruption"),
        ("28b52ffd2450ad0000689c0100800100018401010000000201d409b70011e9a31fd7", "corruption"),
        (
            "28b52ffd20503d0100f89c01008080ff8080010001840101000001000001000081000001000001ff00020141d15d2b63",
            "corruption",
        ),
        ("28b52ffd0489050100a89c0100808080808001000184010100000100001100030080839df51db08401983d2115", "memory"),
    ],
    ids=["reserved bits", "reserved bits in one segment", "bytes behind no sequences", "a window of gigabytes"],
)
def test_a_zstd_frame_that_a_stricter_library_refuses(frame: str, library_says: str) -> None:
    """A zstd frame that libzstd reads before 1.5.5, or in one call, is refused if a client's library refuses it."""
    with pytest.raises(zstandard.ZstdError, match=library_says):
        zstandard.ZstdDecompressor().decompressobj().decompress(bytes.fromhex(frame))
    assert not taken(sealed(1, bytes.fromhex(frame), ZSTD))


@pytest.mark.parametrize("codec", PACK)
def test_the_largest_that_is_undone_in_place_and_one_byte_more(codec: int) -> None:
    """A batch that decompresses to the limit is accepted; one byte more goes to a thread, however compressed."""
    room = LIMITS[codec] - len(slow_batch.records([(0, None, bytes(LIMITS[codec] - 20), [])], 0))
    for more, expected in ((0, True), (1, False)):
        plain = slow_batch.records([(0, None, bytes(LIMITS[codec] - 20 + room + more), [])], 0)
        assert len(plain) == LIMITS[codec] + more
        assert taken(sealed(1, PACK[codec](random.Random(1), plain), codec)) == expected


def test_every_poison_is_left_to_python_and_no_sound_one() -> None:
    assert [name for name, poison in POISONS.items() if taken(poison)] == []
    assert [name for name, sound in SOUND.items() if not taken(sound)] == []


@pytest.mark.parametrize("codec", PACK)
def test_what_python_clients_compress_is_taken(codec: int) -> None:
    """Data compressed by our client and by aiokafka is accepted; an LZ4 frame with a wrong checksum goes to Python."""
    payload = compress(codec, slow_batch.records([(0, None, b"text of a kind " * 9, [])] * 150, 0))
    assert taken(sealed(150, payload, codec))
    if codec == LZ4:
        assert not taken(sealed(150, payload[:-1] + bytes([payload[-1] ^ 1]), codec))


FIXED_BLOCK = [(0, 1), (1, 2), (0, 7)]
"""An empty block with fixed codes, as (value, bits): not the last block, its type, the end-of-block code."""

TABLE_SIZES = {18: 2, 0: 2, 1: 1}
TABLE_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
DYNAMIC_BLOCK = [
    *[(0, 1), (2, 2), (0, 5), (0, 5), (len(TABLE_ORDER) - 4, 4)],
    *[(TABLE_SIZES.get(symbol, 0), 3) for symbol in TABLE_ORDER],
    *[(0b11, 2), (138 - 11, 7), (0b11, 2), (117 - 11, 7), (0, 1), (0, 1), (0b01, 2), (1, 1)],
]
"""An empty block with its own codes: none for 255 literals, one bit for literal 255 and the end, no distances."""


def with_empty_blocks(plain: bytes, block: list[tuple[int, int]], times: int) -> bytes:
    """Build a gzip of `plain` stored, `times` empty blocks, and an empty last block."""
    value = bits = 0
    for field, width in block * 8:
        value |= field << bits
        bits += width
    stored = b"\0" + struct.pack("<HH", len(plain), len(plain) ^ 0xFFFF) + plain
    stream = stored + value.to_bytes(bits // 8, "little") * (times // 8) + b"\x03\0"
    return gzip.compress(b"")[:10] + stream + struct.pack("<II", zlib.crc32(plain), len(plain))


def test_empty_blocks_of_gzip_take_no_time() -> None:
    """700,000 empty gzip blocks take no time, as their tables are built once."""
    plain = slow_batch.records([(0, None, b"v", [])], 0)
    batch = sealed(1, with_empty_blocks(plain, FIXED_BLOCK, 700_000), GZIP)
    began = time.thread_time()
    assert taken(batch)
    assert time.thread_time() - began < 0.3


def test_many_tables_for_little_are_left_to_a_thread() -> None:
    """Many tables of blocks with little data are left to a thread, as each takes microseconds to build."""
    plain = slow_batch.records([(0, None, b"v", [])], 0)
    for times, expected in ((16, True), (80, False)):
        payload = with_empty_blocks(plain, DYNAMIC_BLOCK, times)
        assert gzip.decompress(payload) == plain
        assert taken(sealed(1, payload, GZIP)) == expected


def test_many_blocks_of_zstd_for_little_are_left_to_a_thread() -> None:
    plain = slow_batch.records([(0, None, bytes(8000), [])], 0)
    for size, expected in ((1000, True), (40, False)):
        packer = zstandard.ZstdCompressor().compressobj()
        payload = b""
        for at in range(0, len(plain), size):
            payload += packer.compress(plain[at : at + size]) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        payload += packer.flush()
        assert readable(sealed(1, payload, ZSTD))
        assert taken(sealed(1, payload, ZSTD)) == expected


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_compressed_block_of_lz4_that_makes_no_bytes_is_not_taken(place: int) -> None:
    """A compressed LZ4 block without bytes is refused anywhere, as Java's reader takes it for the end."""
    plain = slow_batch.records([(0, None, b"v" * 99, [])] * 2, 0)
    blocks = [lz4.block.compress(part, store_size=False) for part in (plain[:99], plain[99:])]

    def frame(blocks: list[bytes]) -> bytes:
        head = lz4.frame.compress(b"", content_checksum=False, store_size=False, block_linked=False)[:7]
        return head + b"".join(struct.pack("<I", len(block)) + block for block in blocks) + bytes(4)

    assert taken(sealed(2, frame(blocks), LZ4))
    assert not taken(sealed(2, frame([*blocks[:place], b"\0", *blocks[place:]]), LZ4))


def test_a_member_of_gzip_does_not_reach_back_into_the_one_before() -> None:
    """A gzip member whose match reaches back into the previous member is refused, as zlib does."""
    raw = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=b"abcdefgh" * 4)
    stream = raw.compress(b"abcdefgh" * 4) + raw.flush()
    trailer = struct.pack("<II", zlib.crc32(b"abcdefgh" * 4), 32)
    member = gzip.compress(b"")[:10] + stream + trailer
    first = slow_batch.records([(0, None, b"abcdefgh" * 4, [])], 0)
    assert not taken(sealed(1, gzip.compress(first) + member, GZIP))
