"""Batches built record by record equal the reference model's; a batch is sealed once and stamped often."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.core import BatchBuilder, Block, Lz4Compressor, check_batch
from pybroker.protocol import compression
from pybroker.protocol import records as slow
from pybroker.protocol.compression import LZ4, compress, compressor
from tests.rows import with_each

times = st.integers(-1, 2**45)
blobs = st.none() | st.binary(max_size=20) | st.binary(min_size=100, max_size=300)
names = st.text(st.characters(codec="utf-8"), max_size=8)
entries = st.tuples(times, blobs, blobs, st.lists(st.tuples(names, blobs), max_size=3))
sections = st.lists(entries, min_size=1, max_size=12)


@given(sections)
def test_what_is_appended_is_the_slow_truth_s_batch(records: list) -> None:
    """A batch built with one append per record has the bytes of the reference model."""
    builder = BatchBuilder()
    assert (builder.count, builder.size) == (0, slow.HEADER_BYTES)
    for record in records:
        assert builder.append(*record)
    assert builder.count == len(records)
    size = builder.size
    batch = builder.seal(tag=("t", 1))
    assert bytes(batch) == slow.build_batch(records)
    assert (len(batch), batch.count, batch.tag) == (size, len(records), ("t", 1))
    assert (builder.count, builder.size) == (0, slow.HEADER_BYTES)


@given(sections, st.integers(1, 4))
def test_sealing_compresses_the_records_section(records: list, codec: int) -> None:
    """Sealing compresses everything behind the header with the codec in the attributes."""
    builder = BatchBuilder()
    for record in records:
        builder.append(*record)
    batch = builder.seal(attributes=codec, compress=lambda plain: compress(codec, plain))
    assert bytes(batch) == slow.build_batch(records, attributes=codec)


@with_each("size", [0, 100, 70_000, 1 << 20])
@with_each("noise", [0.0, 0.5, 1.0])
@with_each("level", [None, -3, 9])
def test_lz4_is_written_straight_into_the_batch(level: int | None, noise: float, size: int) -> None:
    """A batch sealed by core's own compressor has the bytes of the LZ4 package, also on the second use."""
    value = (Random(size).randbytes(int(size * noise)) + b"a row, " * size)[:size]
    builder, packed = BatchBuilder(), compressor(LZ4, level)
    assert type(packed) is Lz4Compressor
    for _ in range(2):
        builder.append(5, b"key", value)
        batch = builder.seal(attributes=LZ4, compress=packed)
        plain = slow.build_batch([(5, b"key", value, [])])[slow.HEADER_BYTES :]
        assert bytes(batch)[slow.HEADER_BYTES :] == compress(LZ4, plain, level) == packed(plain)
        assert check_batch(bytes(batch)).count == 1


def test_without_a_library_of_lz4_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The LZ4 package's function compresses if no liblz4 is found."""

    def none_found(level: int) -> None:
        raise ValueError("there is no liblz4")

    monkeypatch.setattr(compression, "Lz4Compressor", none_found)
    packed = compressor(LZ4, None)
    assert packed is not None and packed(b"plain" * 99) == compress(LZ4, b"plain" * 99)


@given(sections, st.lists(st.tuples(st.integers(-1, 2**62), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1))))
def test_a_batch_is_stamped_as_often_as_it_is_sent(records: list, stamps: list[tuple[int, int, int]]) -> None:
    """A stamp changes producer id, epoch, sequence and CRC, and nothing else."""
    builder = BatchBuilder()
    for record in records:
        builder.append(*record)
    batch = builder.seal()
    for producer_id, epoch, sequence in stamps:
        batch.stamp(producer_id, epoch, sequence)
        expected = slow.build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        assert bytes(batch) == expected
        assert check_batch(bytes(batch)).producer_id == producer_id


@given(sections, st.integers(1, 600))
def test_a_batch_is_full_at_its_size(records: list, batch_size: int) -> None:
    """A record that would exceed batch_size is refused, unless it is the batch's first."""
    builder = BatchBuilder(batch_size=batch_size)
    kept: list = []
    for record in records:
        size = len(slow.build_batch([*kept, record]))
        fits = not kept or size <= batch_size
        assert builder.append(*record) == fits
        if fits:
            kept.append(record)
            assert builder.size == size
    assert bytes(builder.seal()) == slow.build_batch(kept)


def test_a_builder_is_used_again_and_its_batches_live_by_themselves() -> None:
    """Sealing hands the builder's memory to the batch, so neither the next batch nor the builder's end changes it."""
    builder = BatchBuilder(bytes_hint=1 << 16)
    made = []
    for value in (b"first", b"second"):
        builder.append(0, None, value)
        made.append(builder.seal())
    del builder
    assert [bytes(batch) for batch in made] == [slow.build_batch([(0, None, v, [])]) for v in (b"first", b"second")]
    assert memoryview(made[0]).readonly


def test_what_cannot_be_built_is_refused() -> None:
    """Wrong types, a codec without a compressor, and an empty batch raise at once; the builder stays usable."""
    builder = BatchBuilder()
    with pytest.raises(ValueError, match="at least one record"):
        builder.seal()
    for wrong in (("now", None, None), (0, "key", None), (0, None, 5), (0, None, None, [(b"h", b"")])):
        with pytest.raises(TypeError):
            builder.append(*wrong)
    builder.append(7, None, b"v")
    for attributes, squeeze in ((3, None), (0, bytes)):
        with pytest.raises(ValueError, match="one needs the other"):
            builder.seal(attributes=attributes, compress=squeeze)
    with pytest.raises(ZeroDivisionError):
        builder.seal(attributes=3, compress=lambda plain: bytes(1 // 0))
    assert bytes(builder.seal()) == slow.build_batch([(7, None, b"v", [])])
    with pytest.raises(TypeError):
        Block()
