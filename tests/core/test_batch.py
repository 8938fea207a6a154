"""Record batch headers are parsed and checked as in the reference model, for any bytes, and stamped without damage."""

import gzip
import itertools
import random
import struct

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from pybroker.core import BatchHeader, LogError, build_batch, check_batch, iter_batches, rebuild_batch
from tests.core import probes, slow_batch
from tests.core.slow_batch import Batch
from tests.rows import with_each

pytestmark = pytest.mark.xdist_group("probe")
probe = probes.load()

TWO_RECORDS = bytes.fromhex(
    "0000000000000000000000480000000002e5d0dd1f0000000000010000018bcfe568000000018bcfe56805ffffffffffffffffffffffffffff"
    "000000021a000000026b046869020268023110000a020104796f00"
)
COMMIT = bytes.fromhex(
    "0000000000000007000000420000000002954be1060030000000000000018bcfe568000000018bcfe5680000000000000003e80000ffffffff"
    "000000012000000008000000010c00000000000300"
)
PAYLOAD = TWO_RECORDS[61:]

# Boundary values of each field width, for every field.
ODD = {bits: sorted({-(2 ** (bits - 1)), -2, -1, 0, 1, 2, 7, 2 ** (bits - 1) - 1}) for bits in (16, 32, 64)}


def odd(bits: int) -> st.SearchStrategy[int]:
    return st.sampled_from(ODD[bits]) | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


batches = st.builds(
    Batch,
    base_offset=st.just(0) | odd(64),
    batch_length=st.just(0),  # seal sets it
    magic=st.just(2),
    crc=st.just(0),
    partition_leader_epoch=odd(32),
    attributes=st.integers(0, 127) | odd(16),
    last_offset_delta=st.just(1) | odd(32),
    base_timestamp=odd(64),
    max_timestamp=odd(64),
    producer_id=st.just(-1) | odd(64),
    producer_epoch=odd(16),
    base_sequence=odd(32),
    count=st.just(2) | odd(32),
)


def fields(header: BatchHeader) -> Batch:
    return Batch(*(getattr(header, name) for name in Batch._fields))


def code_of(error: pytest.ExceptionInfo[LogError]) -> int:
    return error.value.code


def assert_as_slow(data: bytes, size_max: int = 0) -> None:
    """Check that core and the reference model judge data alike, as any batch and as a client's batch."""
    for client, check in ((True, slow_batch.check_produced), (False, lambda data, _: slow_batch.parse(data))):
        try:
            check(data, size_max if client else 0)
            expected = 0
        except slow_batch.Refused as refused:
            expected = probe.SHORT if refused.args[0] == "short" else refused.args[0]
        status, sentence = probe.check(data, size_max=size_max if client else 0, client=client)
        assert status == expected, (client, sentence)
        assert (status == 0) == (sentence == "the batch is sound")


# -- headers ----------------------------------------------------------------------------------------------------------


def test_the_vector_of_two_records() -> None:
    header = check_batch(TWO_RECORDS)
    assert fields(header) == Batch(0, 72, 0, 2, 0xE5D0DD1F, 0, 1, 1700000000000, 1700000000005, -1, -1, -1, 2)
    assert (header.size, header.last_offset, header.codec) == (84, 1, 0)
    assert not (header.is_transactional or header.is_control or header.is_log_append_time)


def test_the_vector_of_a_commit_marker() -> None:
    header = check_batch(COMMIT)
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1000, 0, -1)
    assert header.is_transactional and header.is_control
    assert "base_offset=7" in repr(header)


def test_a_header_comes_from_a_batch_only() -> None:
    with pytest.raises(TypeError):
        BatchHeader()


@given(batches, st.binary(max_size=40))
def test_a_batch_of_any_fields_is_judged_as_the_slow_truth_judges_it(batch: Batch, payload: bytes) -> None:
    data = slow_batch.seal(batch, payload)
    assert_as_slow(data)
    try:
        expected = slow_batch.parse(data)
    except slow_batch.Refused:
        with pytest.raises(LogError):
            check_batch(data)
    else:
        assert fields(check_batch(data)) == expected
        assert probe.last_sequence(data) == (
            -1 if batch.base_sequence < 0 else (batch.base_sequence + batch.last_offset_delta) % 2**31
        )


@given(st.binary(max_size=120), st.booleans(), st.integers(-30, 200))
@example(b"", False, 0)
def test_any_bytes_are_judged_as_the_slow_truth_judges_them(noise: bytes, framed: bool, length: int) -> None:
    if framed:  # else hardly any input would reach the checks behind length and magic
        noise = noise[:8] + struct.pack(">i", length) + noise[12:16] + b"\2" + noise[17:]
    assert_as_slow(noise)


# -- hostile batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [TWO_RECORDS, COMMIT], ids=["records", "marker"])
def test_a_batch_cut_anywhere_is_never_taken(data: bytes) -> None:
    for cut in range(len(data)):
        assert_as_slow(data[:cut])
        with pytest.raises(LogError) as error:
            check_batch(data[:cut])
        assert code_of(error) == 2
        assert list(iter_batches(data[:cut])) == []


def test_a_flipped_bit_is_found_wherever_the_crc_reaches() -> None:
    for bit in range(8 * len(TWO_RECORDS)):
        flipped = bytearray(TWO_RECORDS)
        flipped[bit // 8] ^= 1 << bit % 8
        assert_as_slow(bytes(flipped))
        if bit >= 8 * 17:
            with pytest.raises(LogError, match="CRC-32C") as error:
                check_batch(flipped)
            assert code_of(error) == 2


@with_each(("magic", "code"), [(0, 43), (1, 43), (3, 2), (127, 2), (128, 2), (255, 2)])
def test_another_magic_is_refused(magic: int, code: int) -> None:
    data = TWO_RECORDS[:16] + bytes([magic]) + TWO_RECORDS[17:]
    with pytest.raises(LogError) as error:
        check_batch(data)
    assert code_of(error) == code
    assert probe.check(data)[0] == code


@with_each("length", [-(2**31), -13, -12, -1, 0, 1, 48, 73, 2**31 - 1])
def test_a_length_that_is_not_the_content_s_is_refused(length: int) -> None:
    data = TWO_RECORDS[:8] + struct.pack(">i", length) + TWO_RECORDS[12:]
    assert probe.check(data)[0] == 2
    with pytest.raises(LogError) as error:
        check_batch(data)
    assert code_of(error) == 2


CLIENT_RULES = [
    ({"base_offset": 1}, 87, "base offset"),
    ({"count": -1}, 87, "records"),
    ({"count": 2**31 - 1}, 87, "records"),
    ({"count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, 87, "cannot come out of"),
    ({"count": 0}, 87, "records"),
    ({"count": 1}, 87, "records"),
    ({"count": 3}, 87, "records"),
    ({"last_offset_delta": -1, "count": 0}, 87, "records"),
    ({"attributes": 0x20}, 87, "control"),
    ({"attributes": 0x30, "producer_id": 9, "producer_epoch": 0, "base_sequence": 0}, 87, "control"),
    ({"attributes": 0x08}, 32, "LogAppendTime"),
    ({"attributes": 0x40}, 87, "delete horizon"),
    ({"attributes": 5}, 87, "codec 5"),
    ({"attributes": 6}, 87, "codec 6"),
    ({"attributes": 7}, 87, "codec 7"),
    ({"attributes": 0x10}, 87, "without a producer id"),
    ({"producer_id": 9, "producer_epoch": 0}, 87, "producer id 9"),
    ({"producer_id": 9, "base_sequence": 0}, 87, "producer id 9"),
    ({"producer_id": -2}, 87, "producer id -2"),
    ({"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}, 0, "sound"),
    ({"attributes": 0x10, "producer_id": 9, "producer_epoch": 0, "base_sequence": 0}, 0, "sound"),
    ({"base_timestamp": -1, "max_timestamp": -1}, 0, "sound"),
    ({"partition_leader_epoch": 12345}, 0, "sound"),
]


@with_each(("changes", "code", "says"), CLIENT_RULES)
def test_what_a_client_may_not_send(changes: dict[str, int], code: int, says: str) -> None:
    sound = Batch(last_offset_delta=1, count=2)
    status, sentence = probe.check(slow_batch.seal(sound._replace(**changes), PAYLOAD))
    assert status == code
    assert says in sentence


def test_a_client_sends_one_batch_and_nothing_after_it() -> None:
    assert probe.check(TWO_RECORDS)[0] == 0
    assert probe.check(b"")[0] == 87
    for more in (b"\0", TWO_RECORDS):
        assert probe.check(TWO_RECORDS + more)[0] == 87
        assert probe.check(TWO_RECORDS + more, client=False)[0] == 0


def test_the_size_limit_comes_before_the_crc() -> None:
    size = len(TWO_RECORDS)
    assert probe.check(TWO_RECORDS, size_max=size)[0] == 0
    assert probe.check(TWO_RECORDS, size_max=size - 1)[0] == 10
    broken = TWO_RECORDS[:-1] + b"\1"
    assert probe.check(broken, size_max=size)[0] == 2
    assert probe.check(broken, size_max=size - 1)[0] == 10


CODECS = {
    1: gzip.compress,
    2: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    3: lz4.frame.compress,
    4: zstandard.ZstdCompressor(level=19).compress,
}


@pytest.mark.parametrize("codec", CODECS)
def test_records_as_small_as_they_get_fit_in_what_a_codec_makes_of_them(codec: int) -> None:
    # The bound on counts must allow the most compressible batch, and refuse one that claims 100 times as many.
    empty = b"\x0c" + bytes(3) + b"\1\1\0"
    block = CODECS[codec](empty * 100_000)
    honest = Batch(attributes=codec, count=100_000, last_offset_delta=99_999)
    assert probe.check(slow_batch.seal(honest, block))[0] == 0
    boast = honest._replace(count=2**31 - 1, last_offset_delta=2**31 - 2)
    assert probe.check(slow_batch.seal(boast, block[:20]))[0] == 87


# -- iteration --------------------------------------------------------------------------------------------------------


def test_batches_are_walked_to_the_last_whole_one() -> None:
    data = TWO_RECORDS + COMMIT + TWO_RECORDS
    ends = [0, len(TWO_RECORDS), len(TWO_RECORDS + COMMIT), len(data)]
    for cut in range(len(data) + 1):
        found = [(at, header.size) for at, header in iter_batches(data[:cut])]
        assert found == [(at, end - at) for at, end in itertools.pairwise(ends) if end <= cut]


def test_a_bad_batch_ends_the_walk_with_its_place() -> None:
    data = bytearray(TWO_RECORDS * 3)
    data[len(TWO_RECORDS) + 70] ^= 1
    assert len(list(iter_batches(data, check_crc=False))) == 3
    walk = iter_batches(data)
    assert next(walk)[0] == 0
    with pytest.raises(LogError, match=f"at byte {len(TWO_RECORDS)} of {len(data)}: the CRC-32C"):
        next(walk)


def test_a_walk_holds_its_buffer_and_lets_it_go() -> None:
    data = bytearray(TWO_RECORDS)
    walk = iter_batches(data)
    with pytest.raises(BufferError):
        data.append(0)
    del walk
    data.append(0)


def test_check_batch_reads_at_a_position() -> None:
    data = TWO_RECORDS + COMMIT
    assert check_batch(data, len(TWO_RECORDS)).base_offset == 7
    with pytest.raises(LogError):
        check_batch(data, len(data))
    for outside in (-1, len(data) + 1):
        with pytest.raises(IndexError):
            check_batch(data, outside)


def test_large_batches_are_checked_the_same() -> None:
    # Above this size the check releases the GIL.
    data = bytearray(build_batch([(0, None, random.Random(1).randbytes(200_000), [])]))
    assert check_batch(data).size == len(data)
    data[-5] ^= 1
    with pytest.raises(LogError, match="CRC-32C"):
        check_batch(data)


# -- stamping and rebuilding ------------------------------------------------------------------------------------------


def test_a_stamp_leaves_the_crc_right() -> None:
    stamped = probe.stamp(TWO_RECORDS, 2**62, 17)
    header = check_batch(stamped)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (2**62, 17, 0xE5D0DD1F)
    assert stamped[16:] == TWO_RECORDS[16:]


@given(st.integers(0, 2**63 - 2**31), st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1), st.binary(max_size=300))
def test_log_append_time_changes_three_fields_and_the_crc(offset: int, epoch: int, now_ms: int, payload: bytes) -> None:
    before = slow_batch.seal(Batch(count=3, last_offset_delta=2, attributes=0x14), payload)
    after = slow_batch.parse(probe.stamp(before, offset, epoch, now_ms))
    expected = slow_batch.parse(before)._replace(
        base_offset=offset, partition_leader_epoch=epoch, attributes=0x1C, max_timestamp=now_ms, crc=after.crc
    )
    assert after == expected


@given(batches.filter(lambda b: b.base_offset >= 0), st.binary(max_size=90), odd(16), odd(64))
def test_a_rebuilt_batch_keeps_its_header(batch: Batch, payload: bytes, attributes: int, max_timestamp: int) -> None:
    before = slow_batch.seal(batch, PAYLOAD)
    try:
        slow_batch.parse(before)
    except slow_batch.Refused:
        with pytest.raises(LogError):
            rebuild_batch(before, payload, attributes, max_timestamp)
        return
    changed = batch._replace(attributes=attributes)
    if max_timestamp != -1:
        changed = changed._replace(max_timestamp=max_timestamp)
    assert rebuild_batch(before, payload, attributes, max_timestamp) == slow_batch.seal(changed, payload)


def test_what_is_no_buffer_is_refused() -> None:
    for call in (check_batch, iter_batches, lambda data: rebuild_batch(TWO_RECORDS, data, 0)):
        with pytest.raises(TypeError):
            call("text")
        with pytest.raises(BufferError):
            call(memoryview(bytes(200))[::2])
