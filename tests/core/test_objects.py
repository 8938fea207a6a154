"""Records as Python objects: equal to the slow decoder's for any cut, and none from malformed batches."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.core import LogError, PartitionBatches, Record, build_batch, read_records
from pybroker.protocol import compression
from pybroker.protocol.records import build_batch as slow_batch
from pybroker.protocol.records import iter_batches

contents = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), contents), max_size=3)
rows = st.lists(st.tuples(st.integers(0, 1 << 42), contents, contents, headers), min_size=1, max_size=12)
logs = st.lists(st.tuples(rows, st.integers(0, 4), st.booleans()), min_size=1, max_size=4)


def log_of(
    batches: list[tuple[list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], int, bool]],
) -> bytes:
    """Build a log of (records, codec, True if LogAppendTime)."""
    data, offset = b"", 0
    for records, codec, by_log in batches:
        data += slow_batch(records, base_offset=offset, attributes=codec | (8 if by_log else 0))
        offset += len(records)
    return data


def slowly(data: bytes) -> list[Record]:
    return [
        Record("t", 3, r.offset, r.timestamp_ms, bool(batch.attributes & 8), r.key, r.value, r.headers)
        for _, batch in iter_batches(data)
        for r in batch.records()
    ]


def read(fetched: PartitionBatches, most: int = 1 << 30) -> list[Record]:
    return read_records(fetched, "t", 3, most, compression.decompress)


@given(batches=logs, start=st.integers(0, 50), most=st.integers(1, 60))
def test_the_same_as_the_slow_decoder(
    batches: list[tuple[list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], int, bool]],
    start: int,
    most: int,
) -> None:
    """Records equal the slow decoder's from any start offset and in pieces of any size."""
    data = log_of(batches)
    fetched, found = PartitionBatches(data, start_offset=start), []
    while piece := read(fetched, most):
        assert len(piece) <= most
        found += piece
        assert fetched.next_offset == piece[-1].offset + 1
    assert fetched.finished and found == [r for r in slowly(data) if r.offset >= start]


def test_what_a_record_is() -> None:
    """A record compares, prints, pickles and copies by its fields, and has its own list of headers."""
    record = Record("t", 1, 2, 3, 0, b"k", None, [("h", b"")])
    assert record == pickle.loads(pickle.dumps(record)) == copy.copy(record) and len({record, copy.copy(record)}) == 1
    assert repr(record) == (
        "Record(topic='t', partition=1, offset=2, timestamp_ms=3, timestamp_type=0, key=b'k', value=None, "
        "headers=[('h', b'')])"
    )
    assert record != Record("t", 1, 2, 3, 0, b"k", b"", [("h", b"")]) and record != 1
    assert Record("t", 1, 2, 3, 0, None, None).headers == []
    with pytest.raises(AttributeError):
        record.offset = 5  # type: ignore[misc]
    assert Record("t", 1, 2, 3, 0, "text", {"a": 1}).value == {"a": 1}  # as deserializers made them


def test_every_byte_of_a_batch_counts() -> None:
    """With the CRC, a flipped bit anywhere gets the batch refused, except in the fields that the CRC does not cover."""
    data = build_batch([(5, b"key", b"value", [("h", b"x")]), (6, None, b"v", [])])
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1
        fetched = PartitionBatches(bytes(broken))
        if at < 8 or 12 <= at < 16:
            read(fetched)
        else:
            try:
                assert read(fetched) == []  # cut: no whole batch
            except LogError as error:
                assert error.code in (2, 43, 87)


def test_records_that_do_not_parse() -> None:
    """Without the CRC, a flipped bit leaves records that parse or are refused, and no read goes out of bounds."""
    data = build_batch([(5, b"key", b"value", [("h", b"x")]), (6, None, b"v", [])] * 3)
    refused = 0
    for at in range(61, len(data)):
        for flip in (1, 0x80, 0xFF):
            broken = bytearray(data)
            broken[at] ^= flip
            fetched = PartitionBatches(bytes(broken), check_crc=False)
            try:
                while found := read(fetched):
                    assert fetched.next_offset == found[-1].offset + 1
            except LogError as error:
                refused += 1
                assert error.code == 87 and "the batch at offset 0" in str(error)
    assert refused > 100


def test_what_comes_before_a_broken_batch_is_returned() -> None:
    """Records before a broken batch are returned, and each later call raises its error."""
    broken = bytearray(build_batch([(5, None, b"b", [])], base_offset=1))
    broken[-1] ^= 1
    fetched = PartitionBatches(build_batch([(5, None, b"a", [])]) + bytes(broken))
    assert [r.value for r in read(fetched)] == [b"a"]
    for _ in range(2):
        with pytest.raises(LogError, match="the batch at offset 1") as caught:
            read(fetched)
        assert caught.value.code == 2 and fetched.next_offset == 1
