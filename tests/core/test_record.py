"""Records are walked, checked and built as by the reference model and other clients; hostile ones are refused."""

import random
import struct
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.core import BatchHeader, LogError, build_batch, check_batch, check_records, walk_records
from tests.core import probes, slow_batch
from tests.core.slow_batch import Batch
from tests.rows import with_each

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

pytestmark = pytest.mark.xdist_group("probe")

FOREVER = {"timestamp_min": -(2**63), "timestamp_max": 2**63 - 1}

times = st.integers(-1, 2**45)
blobs = st.none() | st.binary(max_size=20)
names = st.text(st.characters(codec="utf-8"), max_size=8)
entries = st.tuples(times, blobs, blobs, st.lists(st.tuples(names, blobs), max_size=3))
sections = st.lists(entries, min_size=1, max_size=8)


def header_of(batch: Batch) -> BatchHeader:
    return check_batch(slow_batch.seal(batch, b""))


def slow_walk(payload: bytes, batch: Batch) -> list[slow_batch.Record] | None:
    """The records by the reference model; None if it refuses them."""
    try:
        return list(slow_batch.walk(payload, batch))
    except slow_batch.Refused:
        return None


def assert_as_slow(payload: bytes, batch: Batch) -> None:
    """Check that core and the model read the same records or both refuse, and that both find the same faults."""
    expected, header = slow_walk(payload, batch), header_of(batch)
    if expected is None:
        with pytest.raises(LogError) as error:
            list(walk_records(payload, header))
        assert error.value.code == 87
    else:
        assert list(walk_records(payload, header)) == expected
    for need_keys, low, high in ((False, -(2**63), 2**63 - 1), (True, 0, 2**44)):
        found = check_records(payload, header, need_keys=need_keys, timestamp_min=low, timestamp_max=high)
        assert found == slow_batch.faults(payload, batch, need_keys, low, high)


# -- building and walking ---------------------------------------------------------------------------------------------


@given(sections)
def test_what_is_built_is_what_the_slow_truth_builds_and_walks_back(records: list) -> None:
    data = build_batch(records)
    payload = slow_batch.records(records, records[0][0])
    expected = Batch(
        base_timestamp=records[0][0],
        max_timestamp=max(r[0] for r in records),
        count=len(records),
        last_offset_delta=len(records) - 1,
    )
    assert data == slow_batch.seal(expected, payload)
    walked = list(walk_records(memoryview(data)[61:], check_batch(data)))
    assert walked == [(i, *record) for i, record in enumerate(records)]


@given(sections)
def test_kafka_python_reads_what_we_build(records: list) -> None:
    records = [(max(t, 0), *rest) for t, *rest in records]
    data = build_batch(
        records, base_offset=500, producer_id=9, producer_epoch=2, base_sequence=70, partition_leader_epoch=3
    )
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    assert (batch.base_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (500, 9, 2, 70)
    read = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]
    assert read == [(500 + i, *record) for i, record in enumerate(records)]


@given(sections)
def test_we_read_what_kafka_python_builds_and_build_the_same(records: list) -> None:
    records = [(max(t, 0), *rest) for t, *rest in records]
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(i, timestamp, key, value, headers)
    data = bytes(builder.build())
    assert list(walk_records(data[61:], check_batch(data))) == [(i, *record) for i, record in enumerate(records)]
    ours = bytearray(build_batch(records))
    ours[12:16] = data[12:16]  # a producer may put any value in the leader epoch field
    assert bytes(ours) == data


def test_log_append_time_holds_for_every_record_and_for_other_readers_too() -> None:
    data = build_batch([(1700000000000, None, b"a", []), (1700000000005, b"k", b"b", [])])
    stamped = probes.load().stamp(data, 40, 3, 1_800_000_000_000)
    batch = DefaultRecordBatch(stamped)
    assert batch.validate_crc()
    expected = [(40, 1_800_000_000_000, b"a"), (41, 1_800_000_000_000, b"b")]
    assert [(r.offset, r.timestamp, r.value) for r in batch] == expected
    walked = list(walk_records(stamped[61:], check_batch(stamped)))
    assert [(offset, timestamp, value) for offset, timestamp, _, value, _ in walked] == expected


def test_a_codec_sees_the_records_section_and_nothing_else() -> None:
    records = [(5, b"k", b"v", [])]
    data = build_batch(records, attributes=1, compress=lambda payload: payload[::-1])
    assert check_batch(data).codec == 1
    assert data[61:] == build_batch(records)[61:][::-1]


def test_header_names_that_are_not_text_survive() -> None:
    data = build_batch([(0, None, None, [("caf\udce9", b"")])])
    assert b"caf\xe9" in data
    [(*_, headers)] = walk_records(data[61:], check_batch(data))
    assert headers == [("caf\udce9", b"")]
    assert build_batch([(0, None, None, headers)]) == data


def test_what_cannot_be_built_is_refused() -> None:
    record = (0, None, b"v", [])
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])
    with pytest.raises(ValueError, match="codec 1"):
        build_batch([record], attributes=1)
    with pytest.raises(ValueError, match="codec 0"):
        build_batch([record], compress=bytes)
    for wrong in (("now", None, None, []), (0, "key", None, []), (0, None, 5, []), (0, None, None, [(b"h", b"")])):
        with pytest.raises(TypeError):
            build_batch([wrong])
    with pytest.raises(OverflowError):
        build_batch([(2**63, None, None, [])])


def test_a_batch_of_two_gibibytes_is_too_large() -> None:
    with pytest.raises(LogError) as error:
        build_batch([(0, None, bytes((1 << 31) - 70), [])])
    assert error.value.code == 10


# -- checking ---------------------------------------------------------------------------------------------------------


SOUND = (0, [])


def malformed(index: int) -> tuple[int, list[tuple[int, int, int]]]:
    return 1, [(index, 1, -1)]


def test_every_record_at_fault_is_named() -> None:
    records = [(100 + i, b"k", b"v", []) for i in range(5)]
    data = build_batch(records)
    header, payload = check_batch(data), data[61:]
    assert check_records(payload, header, need_keys=True, timestamp_min=100, timestamp_max=104) == SOUND
    late = check_records(payload, header, need_keys=True, timestamp_min=102, timestamp_max=104)
    assert late == (2, [(0, 3, 100), (1, 3, 101)])
    assert check_records(payload, header, need_keys=True, timestamp_min=100, timestamp_max=103) == (1, [(4, 3, 104)])
    records[1] = (101, None, b"v", [])
    records[3] = (103, None, b"v", [])
    data = build_batch(records)
    found = check_records(data[61:], check_batch(data), need_keys=True, timestamp_min=103, timestamp_max=104)
    assert found == (4, [(0, 3, 100), (1, 2, 101), (2, 3, 102), (3, 2, 103)])
    assert check_records(data[61:], check_batch(data), need_keys=False, **FOREVER) == SOUND


def test_a_malformed_record_is_the_only_one_named() -> None:
    data = build_batch([(100 + i, None, b"v", []) for i in range(5)])
    header, payload = check_batch(data), data[61:]
    assert check_records(payload[:-1], header, need_keys=True, **FOREVER) == malformed(4)
    assert check_records(payload + b"\0", header, need_keys=True, **FOREVER) == malformed(5)


def test_ten_thousand_are_named_and_all_are_counted() -> None:
    data = build_batch([(0, None, b"", [])] * 10_001)
    count, first = check_records(data[61:], check_batch(data), need_keys=True, **FOREVER)
    assert count == 10_001
    assert [index for index, _, _ in first] == list(range(10_000))


def test_no_timestamp_passes_every_limit() -> None:
    data = build_batch([(-1, None, None, [])])
    assert check_records(data[61:], check_batch(data), need_keys=False, timestamp_min=50, timestamp_max=60) == SOUND


@with_each(
    ("deltas", "last", "fault"),
    [
        ([0, 1, 2], 2, None),
        ([0, 5, 9], 9, None),  # compaction removed some
        ([3, 5, 9], 11, None),
        ([0, 1, 1], 2, 2),
        ([0, 2, 1], 2, 2),
        ([1, 2, 3], 2, 2),
        ([-1, 0, 1], 2, 0),
    ],
)
def test_offset_deltas_rise_and_stay_in_the_batch(deltas: list[int], last: int, fault: int | None) -> None:
    bodies = [b"\0\0" + slow_batch.varint(delta) + b"\1\1\0" for delta in deltas]
    payload = b"".join(slow_batch.varint(len(body)) + body for body in bodies)
    header = header_of(Batch(count=len(deltas), last_offset_delta=last))
    assert check_records(payload, header, need_keys=False, **FOREVER) == (SOUND if fault is None else malformed(fault))


# -- hostile records --------------------------------------------------------------------------------------------------


@given(sections, st.randoms(use_true_random=False))
def test_records_with_bytes_changed_are_judged_as_the_slow_truth_judges_them(records: list, rng: random.Random) -> None:
    payload = bytearray(slow_batch.records(records, 0))
    for _ in range(rng.randrange(4)):
        payload[rng.randrange(len(payload))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    batch = Batch(count=len(records), last_offset_delta=len(records) - 1, base_timestamp=2**63 - 2**44)
    assert_as_slow(bytes(payload), batch)
    assert_as_slow(bytes(payload[: rng.randrange(len(payload) + 1)]), batch)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_noise_is_judged_as_the_slow_truth_judges_it(noise: bytes, count: int) -> None:
    assert_as_slow(noise, Batch(count=count, last_offset_delta=max(count - 1, 0)))


def test_records_cut_anywhere_are_refused() -> None:
    records = [(7, b"key", b"value", [("a", b"1"), ("b", None)]), (8, None, b"", [])]
    payload = slow_batch.records(records, 7)
    for cut in range(len(payload)):
        assert_as_slow(payload[:cut], Batch(count=2, last_offset_delta=1))


HUGE = slow_batch.varint(2**31 - 1)


@with_each(
    "payload",
    [
        b"\xff" * 1000,
        b"\x80" * 1000,
        HUGE,
        slow_batch.varint(-1),
        slow_batch.varint(-(2**31)),
        slow_batch.varint(0),
        slow_batch.varint(1) + b"\0",
        b"\x18\0\0\0" + HUGE + b"\1\0..",
        b"\x18\0\0\0\1" + HUGE + b"\0..",
        b"\x18\0\0\0\1\1" + HUGE + b"..",
        b"\x18\0\0\0\1\1" + slow_batch.varint(-1) + bytes(6),
        b"\x18\0\0\0\3\1\0" + bytes(6),  # a key of length -2
        b"\x10\0\0\0\1\1\2\1\1",  # a header whose key is null
        b"\x18\0" + b"\xff" * 9 + b"\x02",
    ],
)
def test_lengths_and_counts_from_outside_are_not_believed(payload: bytes) -> None:
    assert slow_walk(payload, Batch()) is None
    assert_as_slow(payload, Batch())


def test_a_count_that_the_bytes_do_not_hold_costs_nothing() -> None:
    header = header_of(Batch(count=2**31 - 1, last_offset_delta=2**31 - 2))
    payload = build_batch([(0, None, None, [])] * 3)[61:]
    assert check_records(payload, header, need_keys=False, **FOREVER) == malformed(3)
    walk = walk_records(payload, header)
    assert len([next(walk) for _ in range(3)]) == 3
    for _ in range(2):
        with pytest.raises(LogError, match="record 3 of 2147483647"):
            next(walk)


def test_a_timestamp_that_overflows_wraps_as_in_java() -> None:
    batch = Batch(base_timestamp=2**63 - 1)
    payload = slow_batch.records([(2**63, None, None, [])], 2**63 - 1)
    [record] = walk_records(payload, header_of(batch))
    assert record[1] == struct.unpack(">q", struct.pack(">Q", 2**63))[0]


def test_a_walk_holds_its_buffer_and_lets_it_go() -> None:
    data = build_batch([(0, None, b"v", [])])
    payload = bytearray(data[61:])
    walk = walk_records(payload, check_batch(data))
    with pytest.raises(BufferError):
        payload.append(0)
    del walk
    payload.append(0)
    with pytest.raises(TypeError):
        walk_records(payload, None)
    with pytest.raises(TypeError):
        check_records("text", check_batch(data), need_keys=False, **FOREVER)
