"""LZ4 in core reads every form of frame that the reference library writes, and refuses malformed ones."""

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

# Runs, repeats at short and long distances, and noise produce every kind of sequence.
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
    """Build a batch with a sound header around any records section."""
    batch = bytearray(slow.build_batch([(0, None, b"", [])] * count, attributes=LZ4)[:HEADER_BYTES] + frame)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, MAGIC_AT + 1, slow.crc32c(batch[CRC_FROM:]))
    return bytes(batch)


def plain_of(content: bytes) -> bytes:
    """Build a records section of one record with this value."""
    return slow.build_batch([(0, None, content, [])])[HEADER_BYTES:]


def undo(batch: bytes, **how: Any) -> list[bytes | None]:
    columns = Columns(["value"])
    columns.read(PartitionBatches(batch, **how))
    value = columns.take().value
    assert value
    return fields(value)


@given(contents, forms)
def test_frames_of_every_form_are_undone(content: bytes, form: dict[str, Any]) -> None:
    """Frames with each block size, linked or not, with or without checksums and size, of any level are decompressed."""
    assert undo(batch_of(lz4.frame.compress(plain_of(content), **form))) == [content]


@pytest.mark.parametrize("block_size", [4, long(5), long(6), 7])
@pytest.mark.parametrize("linked", [False, True])
def test_frames_of_many_blocks_are_undone(block_size: int, linked: bool) -> None:
    """Frames of several blocks are decompressed, with repeats across block borders and incompressible blocks."""
    noise = random.Random(1).randbytes(6 << 20)
    content = noise[: 5 << 20] + noise[1000:200_000] * 10 + b"a" * (5 << 20)
    frame = lz4.frame.compress(plain_of(content), block_size=block_size, block_linked=linked)
    columns = Columns(["value"])
    columns.read(PartitionBatches(memoryview(_sealed(frame)), check_crc=False))
    value = columns.take().value
    assert value and bytes(value.data) == content


def _sealed(frame: bytes) -> bytes:
    """Build a batch like batch_of without a CRC, which the reference model computes slowly."""
    batch = bytearray(slow.build_batch([(0, None, b"", [])], attributes=LZ4)[:HEADER_BYTES] + frame)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return bytes(batch)


@pytest.mark.parametrize(
    "form",
    [{}, {"block_checksum": True, "content_checksum": True, "store_size": False}, {"block_linked": True}],
    ids=["plain", "checksums", "linked"],
)
def test_frames_with_any_byte_changed_or_cut_anywhere_never_do_harm(form: dict[str, Any]) -> None:
    """A frame with a byte changed or cut anywhere is refused, or decompressed within bounds.

    With block checksums no changed block is decompressed.
    """
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
    assert undo(_sealed(frame + b"\0"), check_crc=False) == good  # as Java reads it; a broker refuses it
    with pytest.raises(LogError):
        core.undo(3, frame + b"\0", 1 << 20)


@given(st.binary(max_size=80))
def test_noise_in_a_frame_is_refused_or_undone_within_bounds(noise: bytes) -> None:
    """Random bytes behind a sound frame header are refused, or decompressed within bounds."""
    head = lz4.frame.compress(b"")[:7]
    frame = head + struct.pack("<I", len(noise)) + noise + bytes(4)
    try:
        undo(_sealed(frame), check_crc=False)
    except LogError as error:
        assert error.code in (2, 87)


def test_a_bomb_is_refused_at_the_bound() -> None:
    """A frame of 400 KB that expands to 110 MB gets MESSAGE_TOO_LARGE, whether it declares its size or not."""
    frame = lz4.frame.compress(bytes(PLAIN_BYTES_MAX + (10 << 20)), store_size=False)
    with pytest.raises(LogError, match=f"holds more than {PLAIN_BYTES_MAX} bytes") as refused:
        undo(_sealed(frame), check_crc=False)
    assert refused.value.code == 10
