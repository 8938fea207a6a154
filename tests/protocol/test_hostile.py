"""Decoding any bytes ends in ProtocolError or a message, with memory in proportion to the bytes."""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import INVALID_REQUEST
from pybroker.protocol import codec, messages
from pybroker.protocol.apis import KNOWN
from pybroker.protocol.codec import ProtocolError
from pybroker.protocol.wire import ELEMENTS_MAX, STRING_MAX, TAGS_MAX, put_uvarint
from tests.protocol.values import NAMES, sample
from tests.rows import with_each

POSITIONS_MAX = 400
"""Positions that are changed in a long message, chosen again in each version."""


def read(kind: Any, version: int, data: bytes) -> bool:
    """True if a message could be read; any error but ProtocolError fails the test."""
    try:
        _, end = codec.decode(kind, version, data)
    except ProtocolError as error:
        assert error.code == INVALID_REQUEST
        return False
    assert end <= len(data)
    return True


def versions_of(kind: Any) -> range:
    return range(kind.SCHEMA.first, kind.SCHEMA.last + 1)


@with_each("name", NAMES)
def test_a_message_cut_anywhere_is_refused(name: str) -> None:
    kind: Any = messages.message(name)
    for version in versions_of(kind):
        data = codec.encode(sample(kind, version, random.Random(version)), version)
        assert read(kind, version, data)
        for end in range(len(data)):
            assert not read(kind, version, data[:end]), f"v{version} cut after {end} of {len(data)} bytes"


def hostile(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Variants of the bytes that are no message, or another one."""
    for position in sorted(rng.sample(range(len(data)), min(len(data), POSITIONS_MAX))):
        yield data[:position] + b"\x7f\xff\xff\xff" + data[position + 4 :]  # the largest i32, as a count or length
        yield data[:position] + b"\xff\xff\xff\xff\x0f" + data[position + 1 :]  # the largest compact one
    for _ in range(30):
        mutant = bytearray(data or b"\0")
        for _ in range(rng.randint(1, 4)):
            mutant[rng.randrange(len(mutant))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        yield bytes(mutant)
    for _ in range(20):
        yield rng.randbytes(rng.randint(0, 64))
    for byte in (b"\0", b"\1", b"\2", b"\x7f", b"\x80", b"\xff"):
        yield byte * 64


def peak(kind: Any, version: int, mutants: list[bytes]) -> int:
    """The peak of allocated bytes while these are read."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    for mutant in mutants:
        read(kind, version, mutant)
    return tracemalloc.get_traced_memory()[1] - before


@with_each("name", NAMES)
def test_a_message_with_bytes_changed_or_made_up_is_read_or_refused(name: str) -> None:
    """Changed or random bytes are read or refused, and a false count or length of two billion allocates nothing."""
    kind: Any = messages.message(name)
    tracemalloc.start()
    try:
        for version in versions_of(kind):
            rng = random.Random(version)
            data = codec.encode(sample(kind, version, rng), version)
            assert read(kind, version, data)  # which also compiles its reader
            mutants = [*hostile(data, rng)]
            # Other threads of this process also allocate at times.
            most = 8 * 1024 + 100 * len(data)
            assert any(peak(kind, version, mutants) < most for _ in range(5)), f"v{version}: more than {most}"
    finally:
        tracemalloc.stop()


@given(data=st.data(), frame=st.binary(max_size=64))
@settings(max_examples=100, deadline=None, database=None)
def test_any_frame_has_a_header_or_is_refused(data: st.DataObject, frame: bytes) -> None:
    if data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(KNOWN)))
        version = data.draw(st.integers(-1, KNOWN[key].max_version + 1))
        frame = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + frame
    try:
        header = codec.decode_request_header(frame)
    except ProtocolError:
        return
    assert 8 <= header.body_offset <= len(frame)
    if KNOWN[header.api_key].has(header.api_version):
        read(KNOWN[header.api_key].request, header.api_version, frame)


def names(count: int) -> bytes:
    """DeleteGroupsRequest v2 with `count` empty names: one byte each on the wire."""
    return put_uvarint(count + 1) + b"\1" * count + b"\0"


def test_the_number_of_elements_is_bounded() -> None:
    kind: Any = messages.message("DeleteGroupsRequest")
    message, _ = codec.decode(kind, 2, names(ELEMENTS_MAX))
    assert len(message.groups_names) == ELEMENTS_MAX
    with pytest.raises(ProtocolError, match=f"groups_names: more than {ELEMENTS_MAX} elements"):
        codec.decode(kind, 2, names(ELEMENTS_MAX + 1))


def test_elements_are_bounded_over_all_arrays_of_a_message() -> None:
    """The number of elements is bounded over all arrays of a message: a resource with a key is two elements."""
    kind: Any = messages.message("DescribeConfigsRequest")
    most = ELEMENTS_MAX // 2
    resource = b"\2" + b"\1" + b"\2\1" + b"\0"  # type, no name, one key of no bytes, no tags
    for count in (most, most + 1):
        frame = put_uvarint(count + 1) + resource * count + bytes(3)
        assert read(kind, 4, frame) == (count == most)


def test_numbers_count_as_well() -> None:
    """Numbers count as elements: each one in a request, and eight of an answer's, such as replicas, as one."""
    asked: Any = messages.message("DescribeProducersRequest")
    told: Any = messages.message("MetadataResponse")
    for kind, most in ((asked, ELEMENTS_MAX - 2), (told, 8 * (ELEMENTS_MAX - 2) + 7)):
        for count in (most, most + 1):
            if kind is asked:
                message = kind(topics=[kind.Topics(name="", partition_indexes=[0] * (count + 1))])
            else:
                partition = kind.Topics.Partitions(replica_nodes=[0] * count)
                message = kind(topics=[kind.Topics(name="", partitions=[partition])])
            assert read(kind, kind.SCHEMA.first, codec.encode(message, kind.SCHEMA.first)) == (count == most)


def test_tags_count_as_elements() -> None:
    """Unknown tags count as elements: at the limit they are skipped, one more is refused, and neither takes long."""
    kind: Any = messages.message("ApiVersionsResponse")
    before = codec.encode(kind(), 3)[:-1]
    started = time.process_time()
    _, end = codec.decode(kind, 3, before + put_uvarint(ELEMENTS_MAX) + b"\x63\0" * ELEMENTS_MAX)
    assert end == len(before) + 3 + 2 * ELEMENTS_MAX
    with pytest.raises(ProtocolError, match="elements"):
        codec.decode(kind, 3, before + put_uvarint(ELEMENTS_MAX + 1) + b"\x63\0" * (ELEMENTS_MAX + 1))
    with pytest.raises(ProtocolError, match="elements"):
        codec.decode(kind, 3, before + put_uvarint(0xFFFFFFFF))
    assert time.process_time() - started < 10


def test_a_count_is_held_against_the_bytes_that_are_left() -> None:
    """A count may be as large as the remaining bytes allow at the least size of an element; one more is refused."""
    kind: Any = messages.message("OffsetForLeaderEpochRequest")
    body = codec.encode(kind(), 2)
    assert body == bytes(4)
    least = 2 + 4  # a name and a count of partitions
    room = 10 * least
    assert len(codec.decode(kind, 2, (10).to_bytes(4, "big") + bytes(room))[0].topics) == 10
    with pytest.raises(ProtocolError, match="topics counts 11 in 60 bytes"):
        codec.decode(kind, 2, (11).to_bytes(4, "big") + bytes(room))


def test_a_compact_string_is_as_long_as_kafka_allows_and_no_longer() -> None:
    kind: Any = messages.message("DeleteGroupsRequest")
    frame = b"\2" + put_uvarint(STRING_MAX + 1) + b"x" * STRING_MAX + b"\0"
    assert codec.decode(kind, 2, frame)[0].groups_names == ["x" * STRING_MAX]
    frame = b"\2" + put_uvarint(STRING_MAX + 2) + b"x" * (STRING_MAX + 1) + b"\0"
    with pytest.raises(ProtocolError, match=r"groups_names\[\] has 32768 bytes, more than 32767"):
        codec.decode(kind, 2, frame)


@with_each(
    ("frame", "why"),
    [
        (b"\2\3\xc3\x28\0", "not UTF-8"),
        (b"\0\0", "groups_names is null"),
        (b"\2\0\0", r"groups_names\[\] is null"),
        (b"\x80\x80\x80\x80\x80\x01", "a varint has more than 32 bits"),
        (b"\xff\xff\xff\xff\x1f", "a varint has more than 32 bits"),
        (b"\1\1\0\x05", "a tagged field exceeds the message"),
        (b"\1\1\x80", "ends early"),
        (b"", "ends early"),
    ],
)
def test_a_refusal_says_what_is_wrong(frame: bytes, why: str) -> None:
    kind: Any = messages.message("DeleteGroupsRequest")
    with pytest.raises(ProtocolError, match=why):
        codec.decode(kind, 2, frame)


def test_tags_may_come_twice_or_in_any_order() -> None:
    """The last one of repeated tags counts, and unknown tags, which later versions may add, are skipped."""
    kind: Any = messages.message("ApiVersionsResponse")
    before = codec.encode(kind(error_code=3), 3)[:-1]
    epochs = [b"\1\x08" + epoch.to_bytes(8, "big") for epoch in (5, 6)]
    section = b"\4" + b"\x63\x02hi" + epochs[0] + b"\3\1\1" + epochs[1]
    message, end = codec.decode(kind, 3, before + section)
    assert end == len(before) + len(section)
    assert message == kind(error_code=3, finalized_features_epoch=6, zk_migration_ready=True)


def test_so_many_unknown_tagged_fields_and_no_more_are_passed_over() -> None:
    """A header or body may have up to TAGS_MAX unknown tagged fields, and one more is refused."""
    kind: Any = messages.message("ApiVersionsRequest")
    body = codec.encode(kind(), 3)[:-1]
    head = codec.encode_request(18, 3, 1, "c", kind())[: 8 + 2 + 1]
    for count, fine in ((TAGS_MAX, True), (TAGS_MAX + 1, False), (2**31 - 1, False)):
        section = put_uvarint(count) + b"".join(put_uvarint(tag) + b"\0" for tag in range(min(count, 2000)))
        for read in (
            lambda section=section: codec.decode_request_header(head + section),
            lambda section=section: codec.decode(kind, 3, body + section),
        ):
            with contextlib.nullcontext() if fine else pytest.raises(ProtocolError, match=r"tagged fields|elements"):
                read()


def test_a_tagged_field_is_as_long_as_its_tag_says() -> None:
    kind: Any = messages.message("ApiVersionsResponse")
    before = codec.encode(kind(), 3)[:-1]
    for size in (7, 9):
        with pytest.raises(ProtocolError, match="finalized_features_epoch and the size of its tag differ"):
            codec.decode(kind, 3, before + b"\1\1" + bytes([size]) + bytes(9))


def test_a_version_that_the_definition_lacks_is_refused() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(ProtocolError, match=f"ProduceRequest has versions 3 to 13, not {version}"):
            codec.decode(messages.message("ProduceRequest"), version, bytes(100))
