"""A malformed record batch is refused with the right error code and not appended, for any kind of topic."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator

import pytest

from tests.harness import BrokerProcess
from tests.wire import ATTRIBUTES_AT, CRC_AT, Wire, batch, crc32c, record

CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, UNSUPPORTED_FOR_MESSAGE_FORMAT = 2, 10, 43
UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, INVALID_TIMESTAMP = 76, 87, 32
REFUSED = {CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD}

TOPICS = {
    "plain": {},
    "append time": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "zstd": {"compression.type": "zstd"},
}
"""Topics by their handling of a batch: leave it, stamp it, check its records, rewrite it."""

GOOD = batch([b"one", b"two"], key=b"k")


def keyed(*values: bytes) -> bytes:
    return b"".join(record(v, b"k", i) for i, v in enumerate(values))


def with_crc(content: bytes) -> bytes:
    """Correct the checksum of a changed batch."""
    return content[:CRC_AT] + struct.pack(">I", crc32c(content[ATTRIBUTES_AT:])) + content[ATTRIBUTES_AT:]


def with_length(content: bytes, length: int) -> bytes:
    return content[:8] + struct.pack(">i", length) + content[12:]


BAD: dict[str, tuple[bytes, set[int]]] = {
    "checksum": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), {CORRUPT_MESSAGE}),
    "magic 0": (batch([b"v"], magic=0), REFUSED),
    "magic 1": (batch([b"v"], magic=1), REFUSED),
    "magic 3": (batch([b"v"], magic=3), REFUSED),
    "magic -1": (batch([b"v"], magic=-1), REFUSED),
    "half a header": (GOOD[:40], REFUSED),
    "length too short": (with_length(GOOD, len(GOOD) - 12 - 5), REFUSED),
    "length too long": (with_length(GOOD, len(GOOD) - 12 + 5), REFUSED),
    "length 0": (with_length(GOOD, 0), REFUSED),
    "length -1": (with_length(GOOD, -1), REFUSED),
    "length 2^31-1": (with_length(GOOD, 2**31 - 1), REFUSED),
    "trailing bytes": (GOOD + b"\0" * 7, REFUSED),
    "two batches": (GOOD + GOOD, REFUSED),
    "nothing": (b"", REFUSED),
    "count 0": (batch([b"one"], count=0), {INVALID_RECORD}),
    "count -1": (batch([b"one"], count=-1), {INVALID_RECORD}),
    "count 2^31-1": (batch([b"one"], count=2**31 - 1), {INVALID_RECORD}),
    "count is not the last delta + 1": (batch([b"one", b"two"], count=1), {INVALID_RECORD}),
    "last delta -1": (batch([b"one"], last_offset_delta=-1, count=0), {INVALID_RECORD}),
    "last delta 2^31-1": (batch([b"one"], last_offset_delta=2**31 - 1, count=-(2**31)), {INVALID_RECORD}),
    "base offset": (batch([b"one"], base_offset=5), {INVALID_RECORD}),
    "control batch": (batch([b"one"], attributes=0x20), {INVALID_RECORD}),
    "transactional without producer": (batch([b"one"], attributes=0x10), {INVALID_RECORD}),
    "producer without sequence": (batch([b"one"], producer_id=5, producer_epoch=0), {INVALID_RECORD}),
    "unknown codec": (batch([b"one"], attributes=5), {INVALID_RECORD, UNSUPPORTED_COMPRESSION_TYPE, CORRUPT_MESSAGE}),
    "codec 7": (batch([b"one"], attributes=7), {INVALID_RECORD, UNSUPPORTED_COMPRESSION_TYPE, CORRUPT_MESSAGE}),
    "log append time from a client": (batch([b"one"], attributes=8, key=b"k"), {INVALID_TIMESTAMP}),
}

BAD_INSIDE: dict[str, bytes] = {
    "no record": batch([b"one"], payload=b""),
    "a record fewer": batch([b"one", b"two"], payload=keyed(b"one")),
    "a record more": batch([b"one"], payload=keyed(b"one", b"two")),
    "bytes behind the records": batch([b"one"], payload=keyed(b"one") + b"\0\0"),
    "a record longer than the batch": batch([b"one"], payload=b"\xfe\xff\xff\xff\x0f" + keyed(b"one")),
    "a record of negative length": batch([b"one"], payload=b"\x01" + keyed(b"one")),
    "a key longer than its record": batch([b"one"], payload=b"\x10\0\0\0\xfe\xff\x03kv\0"),
    "offsets that repeat": batch([b"one", b"two"], payload=record(b"one", b"k", 0) + record(b"two", b"k", 0)),
    "no gzip": batch([b"one"], attributes=1, payload=b"this was never compressed"),
    "half a gzip": batch([b"one"], attributes=1, payload=gzip.compress(keyed(b"one"))[:-9]),
    "bad records in a gzip": batch([b"one", b"two"], attributes=1, payload=gzip.compress(keyed(b"one"))),
}
"""Faults that only a check of the records finds, as header and checksum are right. More are in tests/poisons.py."""


@pytest.fixture
def wire(shared_broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(shared_broker.port) as w:
        yield w


@pytest.mark.parametrize("kind", TOPICS)
def test_the_good_one_is_taken(wire: Wire, topic: str, kind: str) -> None:
    """The batch from which the malformed ones are made is accepted by every kind of topic."""
    assert wire.create_topic(topic, config=TOPICS[kind]) == 0
    assert wire.produce(topic, GOOD)[:2] == (0, 0)
    assert wire.produce(topic, batch([b"v"], key=b"k", attributes=1, payload=gzip.compress(keyed(b"v"))))[:2] == (0, 2)


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize("wrong", BAD)
def test_a_bad_batch_is_refused(wire: Wire, topic: str, kind: str, wrong: str) -> None:
    """A malformed batch gets its error code, the log stays empty, and the connection goes on."""
    assert wire.create_topic(topic, config=TOPICS[kind]) == 0
    content, codes = BAD[wrong]
    produced = wire.produce(topic, content)
    assert produced.error in codes
    assert produced.base_offset == -1
    assert wire.list_offset(topic, -1)[2] == 0
    assert wire.produce(topic, GOOD)[:2] == (0, 0)


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize("wrong", BAD_INSIDE)
def test_bad_records_are_refused(wire: Wire, topic: str, kind: str, wrong: str) -> None:
    """Records that cannot be read are stored in no kind of topic."""
    assert wire.create_topic(topic, config=TOPICS[kind]) == 0
    produced = wire.produce(topic, BAD_INSIDE[wrong])
    assert produced.error in {INVALID_RECORD, CORRUPT_MESSAGE}
    assert wire.list_offset(topic, -1)[2] == 0
    assert wire.produce(topic, GOOD)[:2] == (0, 0)


def test_no_records_at_all(wire: Wire, topic: str) -> None:
    """A partition with null records gets an error."""
    assert wire.create_topic(topic) == 0
    assert wire.produce(topic, None).error in REFUSED
    assert wire.list_offset(topic, -1)[2] == 0


def test_a_wrong_checksum_among_good_batches(wire: Wire, topic: str) -> None:
    """A batch with a wrong checksum is refused, and the batches before and after it are stored."""
    assert wire.create_topic(topic) == 0
    for content, expected in ((GOOD, (0, 0)), (BAD["checksum"][0], (CORRUPT_MESSAGE, -1)), (GOOD, (0, 2))):
        assert wire.produce(topic, content)[:2] == expected
    assert with_crc(GOOD) == GOOD
    assert [b.base_offset for b in wire.fetch_all(topic)] == [0, 2]
