"""LZ4 in core: what the reference library writes, in every form of its frames, and nothing that is malformed."""

from __future__ import annotations

import random
import struct
from typing import Any

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker import core
from pybroker.core import Columns, LogError, PartitionBatches
from pybroker.protocol import records as slow
from pybroker.protocol.records import CRC_FROM, HEADER_BYTES, MAGIC_AT
from tests.core.columnar import fields
from tests.marks import long

LZ4 = 3
PLAIN_BYTES_MAX = 100 << 20

# Runs, repeats at short and long distances, and noise: what makes every kind of sequence.
pieces = st.one_of(
    st.binary(max_size=60),
    st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 4000)).map(lambda p: (p[0] * p[1])[:5000]),
)
contents = st.lists(pieces, max_size=8).map(b"".join)
forms = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([4, 5, 6, 7]),
        "block_linked": st.booleans(),
        "block_checksum": st.booleans(),
        "content_checksum": st.booleans(),
        "store_size": st.booleans(),
        "compression_level": st.sampled_from([-5, 0, 3, 9]),
    }
)


def batch_of(frame: bytes, count: int = 1) -> bytes:
    """A batch whose header is sound, whatever its records section is."""
    batch = bytearray(slow.build_batch([(0, None, b"", [])] * count, attributes=LZ4)[:HEADER_BYTES] + frame)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, MAGIC_AT + 1, slow.crc32c(batch[CRC_FROM:]))
    return bytes(batch)


def plain_of(content: bytes) -> bytes:
    """A records section of one record with this value."""
    return slow.build_batch([(0, None, content, [])])[HEADER_BYTES:]


def undo(batch: bytes, **how: Any) -> list[bytes | None]:
    columns = Columns(["value"])
    columns.read(PartitionBatches(batch, **how))
    value = columns.take().value
    assert value
    return fields(value)


@given(contents, forms)
def test_frames_of_every_form_are_undone(content: bytes, form: dict[str, Any]) -> None:
    """Blocks of each size, linked or not, with and without checksums and size, of fast and of thorough levels."""
    assert undo(batch_of(lz4.frame.compress(plain_of(content), **form))) == [content]


@pytest.mark.parametrize("block_size", [4, long(5), long(6), 7])
@pytest.mark.parametrize("linked", [False, True])
def test_frames_of_many_blocks_are_undone(block_size: int, linked: bool) -> None:
    """Several blocks, of text that repeats across their borders and of noise that is stored as it is."""
    noise = random.Random(1).randbytes(6 << 20)
    content = noise[: 5 << 20] + noise[1000:200_000] * 10 + b"a" * (5 << 20)
    frame = lz4.frame.compress(plain_of(content), block_size=block_size, block_linked=linked)
    columns = Columns(["value"])
    columns.read(PartitionBatches(memoryview(_sealed(frame)), check_crc=False))
    value = columns.take().value
    assert value and bytes(value.data) == content


def _sealed(frame: bytes) -> bytes:
    """Like batch_of, without the CRC, which the slow truth takes long for."""
    batch = bytearray(slow.build_batch([(0, None, b"", [])], attributes=LZ4)[:HEADER_BYTES] + frame)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return bytes(batch)


@pytest.mark.parametrize(
    "form",
    [{}, {"block_checksum": True, "content_checksum": True, "store_size": False}, {"block_linked": True}],
    ids=["plain", "checksums", "linked"],
)
def test_frames_with_any_byte_changed_or_cut_anywhere_never_do_harm(form: dict[str, Any]) -> None:
    """Refused with a code, or undone to what a record can be; with block checksums nothing changed is undone."""
    frame = lz4.frame.compress(plain_of(b"some text, some text, more text" * 4 + bytes(range(40))), **form)
    good = undo(_sealed(frame), check_crc=False)
    for place in range(len(frame)):
        for wrong in (frame[place] ^ 0xFF, frame[place] ^ 1, 0, 0xF0):
            bad = frame[:place] + bytes([wrong]) + frame[place + 1 :]
            try:
                found = undo(_sealed(bad), check_crc=False)
            except LogError as error:
                assert error.code in (2, 10, 87)
            else:
                content_checksum = place >= len(frame) - 4 and form.get("content_checksum")
                assert found == good or not form.get("block_checksum")
                assert found == good or not content_checksum
        with pytest.raises(LogError) as refused:
            undo(_sealed(frame[:place]), check_crc=False)
        assert refused.value.code == 2
    with pytest.raises(LogError, match="the batch at offset 0, byte 0: its lz4 data is malformed"):
        undo(_sealed(frame[:-1]), check_crc=False)
    assert undo(_sealed(frame + b"\0"), check_crc=False) == good  # as Java reads it; a broker refuses to store it
    with pytest.raises(LogError):
        core.undo(3, frame + b"\0", 1 << 20)


@given(st.binary(max_size=80))
def test_noise_in_a_frame_is_refused_or_undone_within_bounds(noise: bytes) -> None:
    """A sound header and block size around bytes of no meaning."""
    head = lz4.frame.compress(b"")[:7]
    frame = head + struct.pack("<I", len(noise)) + noise + bytes(4)
    try:
        undo(_sealed(frame), check_crc=False)
    except LogError as error:
        assert error.code in (2, 87)


def test_a_bomb_is_refused_at_the_bound() -> None:
    """400 KB that would become 110 MB: refused with MESSAGE_TOO_LARGE, wherever it says so itself."""
    frame = lz4.frame.compress(bytes(PLAIN_BYTES_MAX + (10 << 20)), store_size=False)
    with pytest.raises(LogError, match=f"holds more than {PLAIN_BYTES_MAX} bytes") as refused:
        undo(_sealed(frame), check_crc=False)
    assert refused.value.code == 10
