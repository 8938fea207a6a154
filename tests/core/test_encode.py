"""Columns become batches: each partition's rows in order, within the bounds, with the bytes of the reference model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.core import ByteColumn, Encoder, HeaderColumn, SealedBatch, partitions_of
from pybroker.protocol import records as slow
from pybroker.protocol.compression import compress
from tests.rows import with_each

times = st.integers(-1, 2**45)
blobs = st.none() | st.binary(max_size=20) | st.binary(min_size=100, max_size=300)
names = st.text(st.characters(codec="utf-8"), max_size=8)
entries = st.tuples(times, blobs, blobs, st.lists(st.tuples(names, blobs), max_size=3))
tables = st.lists(st.tuples(entries, st.integers(-1, 3)), max_size=30)


def arrow(fields: Sequence[bytes | None], *, large: bool = False, before: int = 0) -> ByteColumn:
    """Build a column of the fields in Arrow's layout, as the rows from `before` on."""
    found = [b"not mine"] * before + list(fields)
    sizes = [len(field or b"") for field in found]
    offsets = np.cumsum([0, *sizes], dtype=np.int64 if large else np.int32)
    valid = np.packbits(np.array([field is not None for field in found], bool), bitorder="little")
    data = b"".join(field or b"" for field in found)
    return ByteColumn.of_offsets(data, offsets, validity=valid, start=before, length=len(fields), large=large)


def fixed(fields: Sequence[bytes | None]) -> ByteColumn:
    """Build a column like NumPy's S type: a null is empty, and trailing zeros are dropped."""
    width = max([1, *(len(field or b"") for field in fields)])
    array = np.array([field or b"" for field in fields], f"S{width}")
    return ByteColumn.of_fixed(array.view(np.uint8), array.itemsize, strip=True)


def header_column(rows: Sequence[Sequence[tuple[str, bytes | None]]]) -> HeaderColumn:
    pairs = [pair for row in rows for pair in row]
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return HeaderColumn(offsets, arrow([name.encode() for name, _ in pairs]), arrow([value for _, value in pairs]))


def columns(table: list[tuple[Any, int]], make: Any = arrow) -> dict[str, Any]:
    """Arguments of Encoder.add for rows of ((timestamp, key, value, headers), partition)."""
    return {
        "values": make([row[2] for row, _ in table]),
        "keys": make([row[1] for row, _ in table]),
        "timestamps": np.array([row[0] for row, _ in table], np.int64),
        "headers": header_column([row[3] for row, _ in table]),
        "partitions": np.array([place for _, place in table], np.int32),
    }


def records_of(batch: SealedBatch | bytes) -> list[Any]:
    return [(r.timestamp_ms, r.key, r.value, r.headers) for r in slow.read_batch(bytes(batch)).records()]


def assert_holds(batches: list[SealedBatch], table: list[tuple[Any, int]], batch_size: int, records_max: int) -> None:
    """Check that every row is in a batch of its partition, in order, and that no batch ends early."""
    for place in {batch.tag for batch in batches} | {place for _, place in table}:
        made = [batch for batch in batches if batch.tag == place]
        found = [records_of(batch) for batch in made]
        assert [row for rows in found for row in rows] == [row for row, p in table if p == place]
        for batch, rows in zip(made, found, strict=True):
            assert bytes(batch) == slow.build_batch(rows)
            assert batch.count == len(rows) <= records_max
            assert len(batch) <= batch_size or len(rows) == 1
        for rows, after in itertools.pairwise(found):  # a batch ends where the next record did not fit
            assert len(rows) == records_max or len(slow.build_batch([*rows, after[0]])) > batch_size


# -- parity -----------------------------------------------------------------------------------------------------------


@given(tables, st.integers(1, 900), st.integers(1, 8), st.booleans())
def test_rows_go_to_their_partitions_in_full_batches(table: list, batch_size: int, most: int, large: bool) -> None:
    """Rows of each partition, and of none (-1), are in order in batches bounded by bytes and records."""
    encoder = Encoder(partitions=4, batch_size=batch_size, records_max=most)
    batches = encoder.add(**columns(table, lambda fields: arrow(fields, large=large, before=3)))
    batches += encoder.finish()
    assert_holds(batches, table, batch_size, most)
    assert encoder.finish() == []


@given(tables, st.lists(st.integers(0, 30), max_size=4))
def test_rows_may_come_in_pieces(table: list, cuts: list[int]) -> None:
    """Rows added range by range make the same batches as rows added at once."""
    whole, pieces = (Encoder(partitions=4, batch_size=500) for _ in range(2))
    expected = whole.add(**columns(table, ByteColumn.of_list))
    bounds = [0, *sorted(min(cut, len(table)) for cut in cuts), len(table)]
    found = []
    for start, stop in itertools.pairwise(bounds):
        found += pieces.add(**columns(table, ByteColumn.of_list), start=start, stop=stop)
    assert [bytes(batch) for batch in found] == [bytes(batch) for batch in expected]
    assert [bytes(batch) for batch in pieces.finish()] == [bytes(batch) for batch in whole.finish()]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_batches_are_compressed(codec: int) -> None:
    """The size bound applies before compression; each batch is compressed separately."""
    table = [((i, b"k", b"v" * 100, []), -1) for i in range(50)]
    encoder = Encoder(batch_size=2000, attributes=codec, compress=lambda plain: compress(codec, plain))
    batches = encoder.add(**columns(table)) + encoder.finish()
    assert [row for batch in batches for row in records_of(batch)] == [row for row, _ in table]
    assert all(bytes(batch) == slow.build_batch(records_of(batch), attributes=codec) for batch in batches)
    assert len(batches) == 3


def test_a_compressor_that_fails_loses_no_row() -> None:
    """A compressor's exception reaches the caller, and the next call returns all the batches."""
    fail = [False, True]

    def squeeze(plain: memoryview) -> bytes:
        if fail and fail.pop(0):
            raise MemoryError
        return compress(3, plain)

    encoder = Encoder(batch_size=1, attributes=3, compress=squeeze)
    with pytest.raises(MemoryError):
        encoder.add(ByteColumn.of_list([b"0", b"1", b"2", b"3"]), timestamps=0)
    assert [records_of(batch)[0][2] for batch in encoder.finish()] == [b"0", b"1", b"2", b"3"]


@given(
    st.lists(st.tuples(times, st.lists(blobs | st.binary(min_size=500, max_size=600), max_size=20)), max_size=4),
    st.integers(1, 900), st.integers(1, 8), st.sampled_from([arrow, ByteColumn.of_list, fixed]),
)  # fmt: skip
def test_one_timestamp_may_do_for_all_rows(
    pieces: list[tuple[int, list[bytes | None]]], batch_size: int, most: int, column: Callable[..., ByteColumn]
) -> None:
    """One timestamp may serve all rows, and keys, headers and partitions may be left out; batches span calls."""
    encoder = Encoder(batch_size=batch_size, records_max=most)
    batches: list[SealedBatch] = []
    table = []
    for at, values in pieces:
        batches += encoder.add(column(values), timestamps=at)
        table += [((at, None, (value or b"").rstrip(b"\0") if column is fixed else value, []), -1) for value in values]
    batches += encoder.finish()
    assert_holds(batches, table, batch_size, most)


# -- sources ----------------------------------------------------------------------------------------------------------


def test_numpy_s_fixed_width_fields() -> None:
    """NumPy's fixed-width fields lose trailing zeros as S, and keep them as V."""
    array = np.array([b"abc", b"", b"a\0b"], "S4")
    for strip, expected in ((True, array.tolist()), (False, [b"abc\0", b"\0" * 4, b"a\0b\0"])):
        encoder = Encoder()
        encoder.add(ByteColumn.of_fixed(array.view(np.uint8), 4, strip=strip), timestamps=0)
        assert [row[2] for row in records_of(encoder.finish()[0])] == expected


def test_a_column_holds_what_it_reads() -> None:
    """A column keeps its buffers alive after their owner released them."""
    column = ByteColumn.of_offsets(bytearray(b"xy"), np.array([0, 1, 2], np.int32))
    listed = ByteColumn.of_list([bytes([65 + i]) * 3 for i in range(2)])
    encoder = Encoder()
    encoder.add(column, keys=listed, timestamps=0)
    assert [row[1:3] for row in records_of(encoder.finish()[0])] == [(b"AAA", b"x"), (b"BBB", b"y")]


@with_each("large", [False, True])
@with_each(
    ("offsets", "row"), [([0, 2, 5], 1), ([0, -1, 3], 0), ([3, 2, 4], 0), ([0, 2, 1], 1), ([2**31 - 1, 0, 0], 0)]
)
def test_offsets_that_leave_the_data_are_refused(large: bool, offsets: list[int], row: int) -> None:
    """Offsets that leave the data are refused with the row's number, and the rows before it are kept."""
    kind = np.int64 if large else np.int32
    bad = ByteColumn.of_offsets(b"abcd", np.array(offsets, kind), large=large)
    good = ByteColumn.of_list([b"v"] * 2)
    with pytest.raises(ValueError, match=f"row {row}: its offsets leave the data"):
        partitions_of(bad, 3)
    for how in ({"values": bad}, {"values": good, "keys": bad}):
        encoder = Encoder()
        with pytest.raises(ValueError, match=f"row {row}: its offsets leave the data"):
            encoder.add(**how, timestamps=0)
        assert sum(batch.count for batch in encoder.finish()) == row


@with_each("large", [False, True])
@with_each("power", [29, 30, 31, 59, 60, 61, 62, 63])
def test_more_rows_than_there_are(large: bool, power: int) -> None:
    """A start or length whose bytes overflow 64 bits, or nearly, is refused."""
    offsets = np.zeros(8, np.int64 if large else np.int32)
    ones = np.full(1, 255, np.uint8)
    pair = ByteColumn.of_list([b"h", b"i"])
    for far in (2**power - 2, 2**power - 1, 2**power, 2**power + 1):
        for start, length in ((0, far), (1, far), (far, 1), (far, far), (far, None), (far, 0)):
            for validity in (None, ones):
                how = {"start": start, "length": length, "validity": validity}
                if not length and validity is None and far < 2**63:
                    assert len(ByteColumn.of_offsets(b"abcd", offsets, large=large, **how)) == 0
                    continue
                with pytest.raises((ValueError, OverflowError)):
                    ByteColumn.of_offsets(b"abcd", offsets, large=large, **how)
                with pytest.raises((ValueError, OverflowError)):
                    HeaderColumn(offsets, pair, pair, **how)


@pytest.mark.parametrize("offsets", [[0, 1, 3], [0, -1, 1], [2, 1, 1]])
def test_headers_that_are_not_there_are_refused(offsets: list[int]) -> None:
    """A header list that leaves its two headers is refused, and so is a header with a null key."""
    pair = ByteColumn.of_list([b"h", b"i"])
    values = ByteColumn.of_list([b"v", b"w"])
    with pytest.raises(ValueError, match=r"row \d: its offsets"):
        Encoder().add(values, timestamps=0, headers=HeaderColumn(np.array(offsets, np.int32), pair, pair))
    keyless = HeaderColumn(np.array([0, 1, 2], np.int32), ByteColumn.of_list([b"h", None]), pair)
    with pytest.raises(ValueError, match=r"row 1: .* a header has no key"):
        Encoder().add(values, timestamps=0, headers=keyless)


def test_lists_of_headers_may_be_null_and_sliced() -> None:
    """A null list of headers means no headers, and rows may begin within the offsets, as in Arrow."""
    pairs = ByteColumn.of_list([b"a", b"b", b"c"])
    headers = HeaderColumn(np.array([0, 1, 2, 3], np.int32), pairs, pairs, validity=bytes([0b101]), start=1)
    encoder = Encoder()
    encoder.add(ByteColumn.of_list([b"v", b"w"]), timestamps=0, headers=headers)
    assert [row[3] for row in records_of(encoder.finish()[0])] == [[], [("c", b"c")]]


def test_what_does_not_fit_together_is_told() -> None:
    """Short buffers, lengths that differ and unknown partitions raise errors that state the numbers."""
    two = ByteColumn.of_list([b"a", b"b"])
    one = ByteColumn.of_list([b"a"])
    encoder = Encoder(partitions=2)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("1 keys beside 2 values", {"keys": one}),
        ("timestamps of 8 bytes, where 16 are needed", {"timestamps": np.zeros(1, np.int64)}),
        ("partitions of 4 bytes, where 8 are needed", {"partitions": np.zeros(1, np.int32)}),
        ("row 1: partition 2, and there are 2", {"partitions": np.array([1, 2], np.int32)}),
        ("row 0: partition -2, and there are 2", {"partitions": np.array([-2, 0], np.int32)}),
        ("rows 1 to 3 of 2", {"start": 1, "stop": 3}),
    ]
    for sentence, how in cases:
        with pytest.raises(ValueError, match=sentence):
            encoder.add(two, **({"timestamps": 0} | how))
    for sentence, make in (
        ("offsets of 8 bytes, where 12 are needed", lambda: ByteColumn.of_offsets(b"", bytes(8), length=2)),
        ("validity of 1 bytes, where 2", lambda: ByteColumn.of_offsets(b"", bytes(40), validity=b"\xff", length=9)),
        ("5 bytes are no whole fields of 2", lambda: ByteColumn.of_fixed(bytes(5), 2)),
        ("2 header keys and 1 values", lambda: HeaderColumn(bytes(4), two, one)),
    ):
        with pytest.raises(ValueError, match=sentence):
            make()
    with pytest.raises(TypeError):
        ByteColumn.of_list(["text"])  # type: ignore[list-item]


# -- the partitioner --------------------------------------------------------------------------------------------------

JAVA = [  # results of org.apache.kafka.common.utils.Utils.murmur2, from Kafka's own tests
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


def slow_murmur2(data: bytes) -> int:
    """Compute MurmurHash2 with the seed of Java's producer, as Utils.murmur2 does, unsigned."""
    m, u32, whole = 0x5BD1E995, 0xFFFFFFFF, len(data) & ~3
    h = 0x9747B28C ^ len(data)
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & u32
        h = (h * m & u32) ^ ((k ^ k >> 24) * m & u32)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & u32
    h = (h ^ h >> 13) * m & u32
    return h ^ h >> 15


def test_keys_find_the_partitions_that_java_finds() -> None:
    """Keys get the partitions of the Java client's own test vectors; the partition count keeps all hash bits."""
    found = np.frombuffer(partitions_of(ByteColumn.of_list([key for key, _ in JAVA]), 2**31 - 1), np.int32)
    assert found.tolist() == [(expected & 0x7FFFFFFF) % (2**31 - 1) for _, expected in JAVA]


@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(1, 2**31 - 1))
def test_keys_of_any_length_are_hashed_as_the_slow_truth_hashes_them(keys: list[bytes | None], n: int) -> None:
    """Keys of any length are hashed like in the reference model, and a null key has no partition."""
    expected = [-1 if key is None else (slow_murmur2(key) & 0x7FFFFFFF) % n for key in keys]
    for column in (ByteColumn.of_list(keys), arrow(keys, before=2)):
        assert np.frombuffer(partitions_of(column, n), np.int32).tolist() == expected
