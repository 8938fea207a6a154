"""Record batches in pure Python have the bytes of Kafka's clients, and malformed ones are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError,
)
from pybroker.protocol import records
from pybroker.protocol.records import (
    Record,
    build_batch,
    iter_batches,
    read_batch,
    read_marker,
    read_varint,
    write_varint,
)
from tests.protocol.oracle import kafka
from tests.rows import with_each

# One record with a header, one without a key 5 ms later; and the commit marker of a transaction.
BATCH = bytes.fromhex(
    "0000000000000000000000480000000002e5d0dd1f0000000000010000018bcfe568000000018bcfe56805ffffffffffffffffffffffff"
    "ffff000000021a000000026b046869020268023110000a020104796f00"
)
COMMIT = bytes.fromhex(
    "0000000000000007000000420000000002954be1060030000000000000018bcfe568000000018bcfe5680000000000000003e80000ffff"
    "ffff000000012000000008000000010c00000000000300"
)
NOW = 1700000000000
TWO = [(NOW, b"k", b"hi", [("h", b"1")]), (NOW + 5, None, b"yo", [])]


def code_of(call: Any) -> int:
    with pytest.raises(KafkaError) as error:
        call()
    return error.value.code


def test_a_batch_that_was_written_elsewhere() -> None:
    batch = read_batch(BATCH)
    assert (batch.size, batch.last_offset, batch.count, batch.codec) == (len(BATCH), 1, 2, 0)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW, NOW + 5)
    assert list(batch.records()) == [Record(0, *TWO[0]), Record(1, *TWO[1])]
    assert build_batch(TWO, partition_leader_epoch=0) == BATCH


def test_a_control_batch() -> None:
    batch = read_batch(COMMIT)
    (record,) = batch.records()
    assert batch.attributes == records.TRANSACTIONAL | records.CONTROL
    assert (record.offset, read_marker(record)) == (7, (1, 3))
    assert records.MARKERS[1] == "COMMIT"
    again = build_batch(
        [(NOW, record.key, record.value, [])],
        base_offset=7,
        attributes=records.TRANSACTIONAL | records.CONTROL,
        producer_id=1000,
        producer_epoch=0,
        partition_leader_epoch=0,
    )
    assert again == COMMIT
    assert read_marker(record._replace(key=b"\0\0\0\2", value=b"")) == (2, -1)
    assert code_of(lambda: read_marker(record._replace(key=None))) == INVALID_RECORD


@with_each(
    ("value", "text"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (64, "8001"),
        (-65, "8101"),
        (300, "d804"),
        ((1 << 31) - 1, "feffffff0f"),
        (-(1 << 31), "ffffffff0f"),
    ],
)
def test_varints(value: int, text: str) -> None:
    assert write_varint(value).hex() == text
    assert read_varint(bytes.fromhex(text), 0) == (value, len(text) // 2)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_long_varints(value: int) -> None:
    data = write_varint(value)
    assert len(data) <= 10
    assert read_varint(data, 0, bits=64) == (value, len(data))
    if not -(1 << 31) <= value < 1 << 31:
        assert code_of(lambda: read_varint(data, 0)) == INVALID_RECORD


@with_each("bits", [32, 64])
@with_each("data", [b"", b"\x80", b"\x80" * 20, b"\x80" * 20 + b"\0", b"\xff" * 9 + b"\x7f", bytes(0)])
def test_varints_that_are_none(data: bytes, bits: int) -> None:
    assert code_of(lambda: read_varint(data, 0, bits=bits)) == INVALID_RECORD


ITEMS = st.lists(
    st.tuples(
        st.integers(-1, 1 << 45),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=10,
)


@given(items=ITEMS, codec=st.integers(0, 4), producer=st.booleans())
@settings(max_examples=60, deadline=None)
def test_kafka_python_reads_and_writes_the_same_batches(items: list[Any], codec: int, producer: bool) -> None:
    ids = (12, 3, 100) if producer else (-1, -1, -1)
    how = {"producer_id": ids[0], "producer_epoch": ids[1], "base_sequence": ids[2], "partition_leader_epoch": 0}
    ours = build_batch(items, attributes=codec | (records.TRANSACTIONAL if producer else 0), **how)
    theirs = kafka.record.default_records.DefaultRecordBatch(ours)
    assert theirs.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in theirs]
    assert read == [(offset, *item) for offset, item in enumerate(items)]
    assert [tuple(record) for record in read_batch(ours).records()] == read

    builder = kafka.record.default_records.DefaultRecordBatchBuilder(2, codec, producer, *ids, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(items):
        builder.append(offset, timestamp, key, value, headers)
    built = bytes(builder.build())
    assert [tuple(record) for record in read_batch(built).records()] == read
    if codec == 0:
        assert built == ours


def test_a_log_is_batches_in_a_row() -> None:
    log = BATCH + COMMIT + build_batch(TWO, base_offset=8, attributes=4)
    found = list(iter_batches(log))
    assert [(position, batch.base_offset) for position, batch in found] == [(0, 0), (84, 7), (162, 8)]
    assert [record.offset for _, batch in found for record in batch.records()] == [0, 1, 7, 8, 9]
    for cut in (1, 60, 61, len(log) - 163):
        assert len(list(iter_batches(log[: 162 + cut]))) == 2


def test_log_append_time_gives_all_records_the_batchs_timestamp() -> None:
    batch = read_batch(build_batch(TWO, attributes=records.LOG_APPEND_TIME))
    assert {record.timestamp_ms for record in batch.records()} == {NOW + 5}


def test_a_flipped_bit_is_found() -> None:
    """A flipped bit is found wherever the CRC covers it, and in fields before it except offset and epoch."""
    for position in range(len(BATCH)):
        flipped = bytearray(BATCH)
        flipped[position] ^= 0x10
        if position < 8 or 12 <= position < 16:
            assert list(read_batch(flipped).records())
        else:
            assert code_of(lambda data=flipped: read_batch(data)) in (CORRUPT_MESSAGE, UNSUPPORTED_FOR_MESSAGE_FORMAT)


def changed(position: int, data: bytes, *, batch: bytes = BATCH) -> bytes:
    """Replace bytes and correct the CRC."""
    new = batch[:position] + data + batch[position + len(data) :]
    return new[:17] + records.crc32c(new[21:]).to_bytes(4, "big") + new[21:]


@with_each(
    ("data", "code"),
    [
        (b"", CORRUPT_MESSAGE),
        (BATCH[:60], CORRUPT_MESSAGE),
        (BATCH[:-1], CORRUPT_MESSAGE),
        (changed(8, b"\xff\xff\xff\xff"), CORRUPT_MESSAGE),
        (changed(8, b"\x7f\xff\xff\xff"), CORRUPT_MESSAGE),
        (changed(8, b"\0\0\0\x30"), CORRUPT_MESSAGE),
        (changed(16, b"\0"), UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (changed(16, b"\1"), UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (changed(16, b"\3"), UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (changed(57, b"\xff\xff\xff\xff"), INVALID_RECORD),
        (changed(57, b"\x7f\xff\xff\xff"), INVALID_RECORD),
        (changed(57, b"\0\0\0\3"), INVALID_RECORD),
        (changed(23, b"\0\0\0\0"), INVALID_RECORD),
    ],
)
def test_a_batch_that_cannot_be(data: bytes, code: int) -> None:
    assert code_of(lambda: read_batch(data)) == code


@with_each(
    ("position", "data"),
    [
        (61, b"\0"),  # a record of no bytes
        (61, b"\x01"),  # a size of -1
        (61, b"\x7e"),  # past the end
        (61, b"\x1c"),  # one byte more than there is
        (65, b"\x03"),  # a key of -2 bytes
        (65, b"\x7e"),  # a key past the end
        (67, b"\xff\xff\xff\xff\x7f"),  # a length of more than 32 bits
        (70, b"\x04"),  # two headers, though there is one
        (70, b"\x01"),  # -1 headers
        (70, b"\x00"),  # no headers, and bytes left
        (71, b"\x01"),  # a null header key
        (72, b"\xc3"),  # a header key that is not UTF-8
        (57, b"\0\0\0\1"),  # one record less than there is
    ],
)
def test_records_that_do_not_parse(position: int, data: bytes) -> None:
    batch = read_batch(changed(position, data))
    assert code_of(lambda: list(batch.records())) == INVALID_RECORD


def test_a_compressed_batch_is_decompressed_within_bounds() -> None:
    batch = read_batch(build_batch([(NOW, None, bytes(100_000), [])], attributes=4))
    assert len(batch.payload) < 1000
    assert len(list(batch.records(max_bytes=100_100))) == 1
    assert code_of(lambda: list(batch.records(max_bytes=100_000))) == MESSAGE_TOO_LARGE


def test_hostile_payloads_end_in_an_error_or_in_records() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        payload = bytearray(BATCH[61:])
        for _ in range(rng.randint(1, 6)):
            payload[rng.randrange(len(payload))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        batch = read_batch(changed(61, bytes(payload[: rng.randint(0, len(payload))])))
        try:
            assert len(list(batch.records())) == 2
        except KafkaError as error:
            assert error.code == INVALID_RECORD


def test_crc_of_the_standards_example() -> None:
    """The CRC has the values of RFC 3720, B.4."""
    assert records.crc32c(bytes(32)) == 0x8A9136AA
    assert records.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert records.crc32c(bytes(range(32))) == 0x46DD794E
