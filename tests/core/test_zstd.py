"""zstd in core decompresses what the reference library writes, and malformed data does no harm."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pybroker.core import Columns, LogError, PartitionBatches, undo
from pybroker.protocol import records as slow
from tests.core.columnar import fields
from tests.core.test_lz4 import contents
from tests.harness import ROOT

ZSTD = 4
MOST = 1 << 24
SKIPPED = struct.pack("<II", 0x184D2A50, 5) + b"12345"
TEXT = b"some text, some text, more text" * 400 + bytes(range(256))

forms = st.fixed_dictionaries(
    {
        "level": st.sampled_from([-5, 1, 3, 19]),
        "write_checksum": st.booleans(),
        "write_content_size": st.booleans(),
    }
)


def stream(content: bytes, **how: Any) -> bytes:
    """Compress like a writer that does not know the size in advance."""
    packer = zstandard.ZstdCompressor(**how).compressobj()
    return packer.compress(content) + packer.flush()


def test_the_library_is_found() -> None:
    """libzstd is found inside the zstandard package, a requirement of ours."""
    assert bytes(undo(ZSTD, zstandard.compress(b"x"), MOST)) == b"x"  # a ValueError if there is none
    module = "import sys, types; sys.modules['zstandard'] = types.ModuleType('zstandard'); import pybroker.core"
    subprocess.run([sys.executable, "-c", module], cwd=ROOT, check=True)


def test_it_is_the_package_s() -> None:
    """libzstd comes from the package, so that its version does not depend on the machine."""
    listed = "import pybroker.core; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", listed], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "/zstandard/" in maps and "libzstd" not in maps


@pytest.mark.parametrize("most", [-1, -(2**63), 2**31, 2**63 - 1])
def test_limits_that_are_none(most: int) -> None:
    for codec, frame in ((ZSTD, zstandard.compress(TEXT)), (3, lz4.frame.compress(TEXT))):
        with pytest.raises(ValueError, match=f"bytes_max is {most}"):
            undo(codec, frame, most)
    with pytest.raises(ValueError, match="codec 99 is not lz4"):
        undo(99, zstandard.compress(TEXT), MOST)


@given(contents, forms)
def test_frames_of_every_form_are_undone(content: bytes, form: dict[str, Any]) -> None:
    """Frames of every form are decompressed, alone and in sequence with skippable frames between them."""
    frame = zstandard.ZstdCompressor(**form).compress(content)
    assert bytes(undo(ZSTD, frame, MOST)) == content
    assert bytes(undo(ZSTD, stream(content, level=form["level"]), MOST)) == content
    assert bytes(undo(ZSTD, SKIPPED + frame + SKIPPED + frame, MOST)) == 2 * content


def test_columns_are_read_without_python() -> None:
    """Columns decompress zstd without Python, and an error of damaged data names the batch."""
    batch = slow.build_batch([(0, None, TEXT, [])] * 3, attributes=ZSTD)
    columns = Columns(["value"])
    columns.read(PartitionBatches(batch))
    value = columns.take().value
    assert value and fields(value) == [TEXT] * 3
    bad = bytearray(batch)
    bad[70] ^= 0xFF
    with pytest.raises(LogError, match="the batch at offset 0, byte 0: its zstd data is malformed"):
        columns.read(PartitionBatches(bad, check_crc=False))


@pytest.mark.parametrize("packed", [zstandard.ZstdCompressor(write_checksum=True).compress(TEXT), stream(TEXT)])
def test_frames_with_any_byte_changed_or_cut_anywhere_never_do_harm(packed: bytes) -> None:
    for place in range(len(packed)):
        for wrong in (packed[place] ^ 0xFF, packed[place] ^ 1, 0, 0xF0):
            bad = packed[:place] + bytes([wrong]) + packed[place + 1 :]
            try:
                assert len(undo(ZSTD, bad, MOST)) <= MOST
            except LogError as error:
                assert error.code in (2, 10)
        with pytest.raises(LogError) as refused:
            undo(ZSTD, packed[:place], MOST)
        assert refused.value.code == 2


def test_a_size_that_lies_is_not_believed() -> None:
    """A false content size is refused, and a far too large one takes no memory."""
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(1000)))
    assert frame[4] >> 6 == 1  # two bytes of size follow the descriptor and count from 256
    for size in (900, 1001, 65_000):
        struct.pack_into("<H", frame, 5, size - 256)
        with pytest.raises(LogError) as refused:
            undo(ZSTD, frame, MOST)
        assert refused.value.code == 2
    with pytest.raises(LogError) as refused:
        undo(ZSTD, frame, 2000)
    assert refused.value.code == 10


def test_a_window_that_is_too_large_is_refused() -> None:
    """A window above 128 MiB is refused, as by Java's reader and every library's default."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = random.Random(1).randbytes(1000)
    with pytest.raises(LogError) as refused:
        undo(ZSTD, packer.compress(data) + packer.flush(), MOST)
    assert refused.value.code == 2


def test_threads_have_contexts_of_their_own() -> None:
    packed = [(stream(each), each) for each in (random.Random(seed).randbytes(seed * 5000) for seed in range(1, 40))]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: bytes(undo(ZSTD, each[0], MOST)) == each[1], packed * 20))
    assert all(found)
