"""Columns hold what the reference model reads: every codec, nulls, headers, gaps, bounds, aborted transactions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.core import COLUMNS, Columns, LogError, PartitionBatches
from pybroker.errors import KafkaError
from pybroker.protocol import records as slow
from pybroker.protocol.compression import decompress
from tests.core.columnar import Row, fields, lists, rows
from tests.rows import with_each

times = st.integers(-1, 2**45)
blobs = st.none() | st.binary(max_size=20) | st.binary(min_size=400, max_size=700)
names = st.text(st.characters(codec="utf-8"), max_size=8)
entries = st.tuples(times, blobs, blobs, st.lists(st.tuples(names, blobs), max_size=3))
sections = st.lists(entries, min_size=1, max_size=12)
batches = st.lists(st.tuples(sections, st.integers(0, 4), st.integers(0, 5)), max_size=5)

PRODUCER = {"producer_epoch": 0, "base_sequence": 0}


def log(made: list[tuple[list, int, int]]) -> bytes:
    """Build a log from (records, codec, gap); `gap` offsets are missing before each batch, as after compaction."""
    data, offset = bytearray(), 0
    for records, codec, gap in made:
        data += slow.build_batch(records, base_offset=offset + gap, attributes=codec)
        offset += gap + len(records)
    return bytes(data)


def slow_rows(data: bytes) -> list[Row]:
    return [
        (r.offset, r.timestamp_ms, 0, r.key, r.value, [(name.encode(), value) for name, value in r.headers])
        for _, batch in slow.iter_batches(data)
        for r in batch.records()
    ]


def read(data: bytes, *, columns: Columns | None = None, **how: object) -> list[Row]:
    columns = columns or Columns(decompress=decompress)
    fetched = PartitionBatches(data, **how)  # type: ignore[arg-type]
    columns.read(fetched)
    assert fetched.finished
    return rows(columns.take())


# -- parity -----------------------------------------------------------------------------------------------------------


@given(batches)
def test_columns_hold_what_the_slow_truth_reads(made: list) -> None:
    """Columns hold the model's offsets, timestamps, keys, values and headers, for every codec, with nulls and gaps."""
    data = log(made)
    assert read(data) == slow_rows(data)


@given(batches, st.integers(0, 60), st.integers(0, 60))
def test_offset_bounds_hold_to_the_record(made: list, start: int, end: int) -> None:
    """Records before start_offset and from end_offset on are left out; next_offset is where reads go on."""
    data = log(made)
    fetched, columns = PartitionBatches(data, start_offset=start, end_offset=end), Columns(decompress=decompress)
    columns.read(fetched)
    assert rows(columns.take()) == [row for row in slow_rows(data) if start <= row[0] < end]
    log_end = max([batch.last_offset + 1 for _, batch in slow.iter_batches(data)], default=0)
    assert fetched.next_offset == min(max(start, log_end), end)


def read_in_pieces(made: list, look: Callable[[Columns, PartitionBatches, int], None], **bounds: int) -> None:
    """Read with these bounds to the end, look at the rows of each read and take them; check that none is lost."""
    data = log(made)
    fetched, columns = PartitionBatches(data), Columns(decompress=decompress)
    found: list[Row] = []
    while not fetched.finished:
        n = columns.read(fetched, **bounds)
        look(columns, fetched, n)
        taken = rows(columns.take())
        assert len(taken) == n
        found += taken
        assert not n or fetched.next_offset >= found[-1][0] + 1
    assert found == slow_rows(data)


@given(batches, st.integers(1, 7))
def test_reading_in_pieces_is_reading_at_once(made: list, most: int) -> None:
    """A read that max_records stopped within a batch continues there, wherever the rows are taken."""

    def look(_: Columns, fetched: PartitionBatches, n: int) -> None:
        assert n == most or fetched.finished

    read_in_pieces(made, look, max_records=most)


@given(batches, st.integers(0, 300))
def test_reading_so_many_bytes_at_once(made: list, enough: int) -> None:
    """max_bytes stops behind the batch that reaches it; after the rows are taken, the next read loses none."""

    def look(columns: Columns, fetched: PartitionBatches, _: int) -> None:
        assert columns.nbytes > enough or fetched.finished
        if columns.nbytes > enough:
            assert columns.read(fetched, max_bytes=enough + 1) == 0

    read_in_pieces(made, look, max_bytes=enough + 1)


@given(batches, st.sets(st.sampled_from(COLUMNS)))
def test_a_column_that_is_not_wanted_changes_no_other(made: list, wanted: set[str]) -> None:
    """A choice of columns has the same values in the chosen ones, and None for the others."""
    data = log(made)
    columns = Columns(wanted, decompress=decompress)
    columns.read(PartitionBatches(data))
    batch, expected = columns.take(), slow_rows(data)
    assert len(batch) == len(expected)
    for place, name in enumerate(COLUMNS):
        column = getattr(batch, name)
        assert (column is None) == (name not in wanted)
        if name in ("key", "value") and column:
            assert fields(column) == [row[place] for row in expected]
        elif name == "headers" and column:
            assert lists(column) == [row[place] for row in expected]
        elif column:
            kind = np.int8 if name == "timestamp_type" else np.int64
            assert np.frombuffer(column, kind).tolist() == [row[place] for row in expected]


def test_a_cut_last_batch_is_left() -> None:
    """A Fetch answer that ends within a batch gives all its whole batches, wherever the cut is."""
    first, second = ([(0, b"k", b"v", [])] * 3, 0, 0), ([(0, None, b"w", [])] * 2, 0, 0)
    data, one = log([first, second]), log([first])
    for cut in range(len(data)):
        fetched, columns = PartitionBatches(data[:cut]), Columns()
        assert columns.read(fetched) == (3 if cut >= len(one) else 0)
        assert fetched.finished
        assert (fetched.next_offset, fetched.position) == ((3, len(one)) if cut >= len(one) else (0, 0))


# -- times ------------------------------------------------------------------------------------------------------------


def test_log_append_time_is_one_for_the_batch() -> None:
    """With LogAppendTime every record has the batch's timestamp and timestamp type."""
    data = slow.build_batch([(5, None, b"a", []), (9, None, b"b", [])], attributes=slow.LOG_APPEND_TIME)
    data += slow.build_batch([(7, None, b"c", [])], base_offset=2)
    assert [row[:3] for row in read(data)] == [(0, 9, 1), (1, 9, 1), (2, 7, 0)]


def test_microseconds_are_milliseconds_a_thousand_times() -> None:
    """timestamp_unit="us" gives microseconds, as Spark counts; a missing timestamp (-1) is -1 ms there too."""
    data = slow.build_batch([(1_700_000_000_123, None, None, []), (-1, None, None, [])])
    columns = Columns(["timestamp"], timestamp_unit="us")
    columns.read(PartitionBatches(data))
    batch = columns.take()
    assert np.frombuffer(batch.timestamp, np.int64).tolist() == [1_700_000_000_123_000, -1000]
    assert batch.timestamp_unit == "us"


def test_timestamps_too_far_for_microseconds_are_the_farthest() -> None:
    """A timestamp that does not fit into 64-bit microseconds is clamped, and does not wrap around."""
    far = [(1 << 63) - 1, -(1 << 63), 1 << 62, 9_223_372_036_854_775]
    farthest = 9_223_372_036_854_775_000
    records = slow.build_batch([(far[0], None, None, [])]) + slow.build_batch([(far[1], None, None, [])], base_offset=1)
    records += slow.build_batch([(far[2], None, None, []), (far[3], None, None, [])], base_offset=2)
    columns = Columns(["timestamp"], timestamp_unit="us")
    columns.read(PartitionBatches(records))
    assert np.frombuffer(columns.take().timestamp, np.int64).tolist() == [farthest, -farthest, farthest, farthest]


# -- several partitions -----------------------------------------------------------------------------------------------


def test_rows_of_several_partitions_gather_and_their_runs_tell_them_apart() -> None:
    """One batch of columns gathers rows of several answers; an answer without rows adds no run."""
    columns = Columns(decompress=decompress)
    for partition, n in ((0, 3), (7, 0), (1, 2)):
        data = log([([(0, None, b"%d" % partition, [])] * n, 3, 0)] if n else [])
        columns.read(PartitionBatches(data), tag=("t", partition))
    batch = columns.take()
    assert batch.runs == [(("t", 0), 3), (("t", 1), 2)]
    assert [row[4] for row in rows(batch)] == [b"0"] * 3 + [b"1"] * 2
    assert (len(columns), columns.nbytes, columns.take().runs) == (0, 0, [])


def test_what_was_taken_lives_by_itself() -> None:
    """Views of taken columns do not change when the columns are read into again or freed."""
    columns = Columns()
    columns.read(PartitionBatches(log([([(0, None, b"first", [])], 0, 0)])))
    batch = columns.take()
    columns.read(PartitionBatches(log([([(0, None, b"other", [])], 0, 0)])))
    assert batch.value
    view = memoryview(batch.value.data)
    del columns, batch
    assert bytes(view) == b"first"
    assert view.readonly


def test_large_blocks_change_hands_and_none_is_used_twice_at_once() -> None:
    """A large block that one thread freed is used again by the next; a block with open views stays as it was."""

    def keeps(mark: int) -> bool:
        kept = []
        for n in range(24):
            value = bytes([mark, n]) * (100_000 + 1000 * n)
            columns = Columns()
            columns.read(PartitionBatches(log([([(0, None, value, [])], 0, 0)])))
            batch = columns.take()
            assert batch.value
            kept = [*kept[-2:], (memoryview(batch.value.data), value)]
            if any(bytes(view) != was for view, was in kept):
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(keeps, range(8)))


# -- transactions -----------------------------------------------------------------------------------------------------


def transactional(offset: int, producer_id: int, value: bytes, codec: int = 0) -> bytes:
    attributes = slow.TRANSACTIONAL | codec
    return slow.build_batch([(0, None, value, [])], base_offset=offset, attributes=attributes, producer_id=producer_id)


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    record = (0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), [])
    attributes = slow.TRANSACTIONAL | slow.CONTROL
    return slow.build_batch([record], base_offset=offset, attributes=attributes, producer_id=producer_id)


ABORT, COMMIT = 0, 1
HISTORY = (
    transactional(0, 1, b"1 aborted")
    + transactional(1, 2, b"2 committed")
    + slow.build_batch([(0, None, b"plain", [])], base_offset=2, producer_id=1)
    + transactional(3, 1, b"1 aborted too", codec=3)
    + marker(4, 2, COMMIT)
    + marker(5, 1, ABORT)
    + transactional(6, 1, b"1 committed")
    + marker(7, 1, COMMIT)
    + transactional(8, 2, b"2 aborted")
    + marker(9, 2, ABORT)
)
COMMITTED = [(1, b"2 committed"), (2, b"plain"), (6, b"1 committed")]


def test_aborted_transactions_are_left_out() -> None:
    """With the aborted transactions of a Fetch answer, their records are left out; next_offset passes them."""
    found = read(HISTORY, aborted=[(2, 8), (1, 0)])
    assert [(row[0], row[4]) for row in found] == COMMITTED
    fetched = PartitionBatches(HISTORY, aborted=[(2, 8), (1, 0)])
    columns = Columns(decompress=decompress)
    while not fetched.finished:
        columns.read(fetched, max_records=1)
    assert [(row[0], row[4]) for row in rows(columns.take())] == COMMITTED
    assert fetched.next_offset == 10


def test_read_uncommitted_shows_all_but_the_markers() -> None:
    """Without the list of aborted transactions all records are read, but no control batch."""
    assert [row[0] for row in read(HISTORY)] == [0, 1, 2, 3, 6, 8]


def test_a_transaction_that_began_before_the_answer_is_known_by_the_list() -> None:
    """A transaction that began before the answer's first batch is left out by the list, up to its marker."""
    start = len(transactional(0, 1, b"1 aborted"))
    found = read(HISTORY[start:], start_offset=1, aborted=[(1, 0)])
    assert [row[0] for row in found] == [1, 2, 6, 8]


# -- hostile batches --------------------------------------------------------------------------------------------------


def judge(data: bytes) -> None:
    """Check that without the CRC, columns and the model read the same records, or columns refuse with a code.

    Columns also refuse offsets that do not rise or that leave their batch, which the model accepts. Only the model
    requires a header's key to be UTF-8.
    """
    try:
        found = read(data, check_crc=False)
    except LogError as error:
        assert error.code in (2, 10, 43, 76, 87)
        assert "offset" in str(error)
        return
    expected = []
    for _, batch in slow.iter_batches(data, check_crc=False):
        if not batch.attributes & slow.CONTROL:
            by_log = bool(batch.attributes & slow.LOG_APPEND_TIME)
            try:
                records = list(batch.records())
            except KafkaError as error:
                assert "UTF-8" in str(error)
                return
            for r in records:
                time = batch.max_timestamp if by_log else r.timestamp_ms
                expected.append((r.offset, time, int(by_log), r.key, r.value, len(r.headers)))
    assert [(*row[:5], len(row[5])) for row in found] == expected


SEVERAL = [
    (1000, b"key", b"value" * 8, [("a", b"1"), ("b", None)]),
    (1001, None, b"", []),
    (1900, b"", None, []),
    (1001, b"k", b"v" * 40, []),
    (1002, None, b"w" * 40, []),
]


@with_each("place", range(61))
def test_a_header_with_any_byte_changed_is_refused_or_read_alike(place: int) -> None:
    """A header with any byte changed to any value is refused, or read as the model reads it."""
    good = slow.build_batch(SEVERAL, base_offset=3)
    for wrong in range(256):
        bad = bytearray(good)
        bad[place] = wrong
        if place == 22 and wrong & 7 in (1, 2, 4):
            continue  # codecs of Python have their own tests
        judge(bytes(bad))


def test_records_with_any_byte_changed_or_cut_anywhere_are_refused_or_read_alike() -> None:
    """Records with a byte changed to a varint's critical values, or cut at any byte, are refused or read alike."""
    good = slow.build_batch(SEVERAL, base_offset=3)
    for place in range(61, len(good)):
        for wrong in {0, 1, 2, 0x7E, 0x7F, 0x80, 0xFE, 0xFF, good[place] ^ 1, good[place] ^ 0x80}:
            judge(good[:place] + bytes([wrong]) + good[place + 1 :])
        cut = bytearray(good[:place])
        struct.pack_into(">i", cut, 8, len(cut) - 12)
        with pytest.raises(LogError, match="the records do not parse as 5 records") as refused:
            read(bytes(cut), check_crc=False)
        assert refused.value.code == 87


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_records_cut_anywhere_are_refused(codec: int) -> None:
    """Compressed records that are cut anywhere are refused, by the codec or as incomplete."""
    good = slow.build_batch(SEVERAL, attributes=codec)
    for place in range(61, len(good)):
        cut = bytearray(good[:place])
        struct.pack_into(">i", cut, 8, len(cut) - 12)
        with pytest.raises(LogError) as refused:
            read(bytes(cut), check_crc=False)
        assert refused.value.code in (2, 87)


@given(st.binary(max_size=120), st.integers(0, 2**31 - 1))
def test_noise_as_records_is_refused_or_read_alike(noise: bytes, count: int) -> None:
    """Random bytes as records are refused or read alike; a false record count allocates nothing for it."""
    for claimed in (count, len(noise) // 7):
        head = bytearray(slow.build_batch([(0, None, None, [])])[:61])
        struct.pack_into(">i", head, 8, len(noise) + 49)
        struct.pack_into(">i", head, 23, 2**31 - 1)
        struct.pack_into(">i", head, 57, claimed)
        judge(bytes(head) + noise)


def test_rows_of_a_malformed_batch_leave_nothing_behind() -> None:
    """Nulls and headers before a fault in a batch are forgotten, and the next batch is read as usual."""
    bad = bytearray(slow.build_batch([(0, None, None, [("h", None)])] * 20))
    bad[-1] = 2  # the last record claims a header that is missing
    columns = Columns()
    columns.read(PartitionBatches(log([([(1, b"k", b"v", [])] * 3, 0, 0)])))
    with pytest.raises(LogError):
        columns.read(PartitionBatches(bytes(bad), check_crc=False))
    columns.read(PartitionBatches(log([([(2, b"k", b"v", [("i", b"w")])] * 30, 0, 0)])))
    batch = columns.take()
    assert batch.key and batch.value and batch.headers
    assert fields(batch.key) == [b"k"] * 33
    assert fields(batch.value) == [b"v"] * 33
    assert lists(batch.headers) == [[]] * 3 + [[(b"i", b"w")]] * 30


# -- misuse -----------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_told() -> None:
    """An unknown column, an unknown unit and a codec without decompress= each raise an error that names it."""
    with pytest.raises(ValueError, match=r"no column 'offsets'; there are offset, timestamp"):
        Columns(["offsets"])
    with pytest.raises(ValueError, match="'ms' or 'us', not 's'"):
        Columns(timestamp_unit="s")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_records is -1"):
        Columns().read(PartitionBatches(b""), max_records=-1)
    with pytest.raises(ValueError, match="codec 1 needs decompress="):
        Columns().read(PartitionBatches(log([([(0, None, b"v", [])], 1, 0)])))
    with pytest.raises(TypeError):
        Columns().read(None)  # type: ignore[arg-type]


def test_an_error_names_the_batch_and_keeps_the_rows_before_it() -> None:
    """Rows of good batches before a bad one are kept, and each further read raises an error naming that batch."""
    good, bad = log([([(0, None, b"v", [])] * 2, 0, 0)]), bytearray(log([([(0, None, b"v", [])] * 2, 0, 2)]))
    bad[-1] ^= 1
    fetched, columns = PartitionBatches(good + bytes(bad)), Columns()
    for _ in range(2):
        with pytest.raises(LogError, match=r"the batch at offset 2, byte \d+: the CRC-32C") as refused:
            columns.read(fetched)
        assert refused.value.code == 2
    assert (fetched.next_offset, fetched.finished) == (2, False)
    assert [row[0] for row in rows(columns.take())] == [0, 1]
