"""Records of __consumer_offsets: the partition of a group, and record bytes that equal Kafka's."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.decisions.group import Group, Member, State
from pybroker.decisions.offsets import Committed
from pybroker.groups import records
from pybroker.groups.records import GroupRecord, OffsetRecord
from pybroker.model import TopicPartition
from pybroker.protocol import codec
from pybroker.state_log.placement import java_hash, partition_of

T0 = TopicPartition("t", 7)


@pytest.mark.parametrize(
    ("key", "partition"), [("g", 3), ("my-group", 12), ("console-consumer-12345", 6), ("tx-1", 20), ("группа", 8)]
)
def test_a_group_lives_where_kafka_looks_for_it(key: str, partition: int) -> None:
    assert partition_of(key, 50) == partition


def test_the_hash_is_javas() -> None:
    """The hash is over UTF-16 units, with overflow; the most negative hash has no absolute value and becomes 0."""
    assert java_hash("") == 0
    assert java_hash("Aa") == java_hash("BB") == 2112
    assert java_hash("😀") == 0xD83D * 31 + 0xDE00
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert partition_of("polygenelubricants", 50) == 0


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def test_an_offset_is_written_as_kafka_writes_it() -> None:
    """Offsets have key version 1 and value version 3; those with an expire time, from old clients, value version 1."""
    key, value = records.offset_record("grp", T0, Committed(42, 5, "meta", 1000))
    assert key == struct.pack(">h", 1) + text("grp") + text("t") + struct.pack(">i", 7)
    assert value == struct.pack(">hqi", 3, 42, 5) + text("meta") + struct.pack(">q", 1000)
    _, value = records.offset_record("grp", T0, Committed(42, 5, "meta", 1000, 2000))
    assert value == struct.pack(">hq", 1, 42) + text("meta") + struct.pack(">qq", 1000, 2000)
    assert records.offset_record("grp", T0, None) == (key, None)


def made(**over: object) -> Group:
    member = Member("m-1", "i", "client", "/10.0.0.1", 6000, 9000, (("range", b"sub"),), b"mine", synced=True)
    fields: dict[str, object] = {
        "state": State.STABLE, "generation": 3, "protocol_type": "consumer", "protocol": "range", "leader": "m-1",
        "members": {"m-1": member}, "static": {"i": "m-1"},
    }  # fmt: skip
    return Group("grp", **(fields | over))  # type: ignore[arg-type]


def test_a_group_is_written_as_kafka_writes_it() -> None:
    """Groups have key version 2 and value version 3."""
    key, value = records.group_record(made(), 777)
    assert key == struct.pack(">h", 2) + text("grp")
    expected = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 3) + text("range") + text("m-1")
    expected += struct.pack(">qi", 777, 1) + text("m-1") + text("i") + text("client") + text("/10.0.0.1")
    expected += struct.pack(">ii", 9000, 6000) + blob(b"sub") + blob(b"mine")
    assert value == expected


def test_an_empty_group_has_neither_protocol_nor_leader() -> None:
    _, value = records.group_record(made(members={}, static={}, protocol=None, leader=None, state=State.EMPTY), 9)
    expected = struct.pack(">h", 3) + text("consumer") + struct.pack(">ihhqi", 3, -1, -1, 9, 0)
    assert value == expected


def test_a_group_is_read_back_as_it_was_written() -> None:
    key, value = records.group_record(made(), 777)
    assert records.parse(key, value) == GroupRecord("grp", made(), 777)
    assert records.parse(key, None) == GroupRecord("grp", None)


@given(
    st.text(max_size=9), st.text(max_size=9), st.integers(0, 2**31 - 1),
    st.builds(Committed, st.integers(0, 2**63 - 1), st.just(-1), st.text(max_size=9), st.integers(0, 2**62),
              st.sampled_from([-1, 5])),
)  # fmt: skip
def test_an_offset_is_read_back_as_it_was_written(group: str, topic: str, partition: int, value: Committed) -> None:
    key = TopicPartition(topic, partition)
    assert records.parse(*records.offset_record(group, key, value)) == OffsetRecord(group, key, value)


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\3whatever", b"\x7f\xff"])
def test_what_is_not_ours_is_passed_over(key: bytes | None) -> None:
    assert records.parse(key, b"\0\0") is None


@pytest.mark.parametrize("cut", [1, 3, 8, 20])
def test_a_record_that_is_cut_short_is_an_error(cut: int) -> None:
    key, value = records.group_record(made(), 777)
    assert value is not None
    with pytest.raises(codec.ProtocolError):
        records.parse(key, value[:-cut])


def test_the_topics_of_a_group_are_read_from_its_members() -> None:
    """Topics are unknown in a group of another protocol or with an invalid subscription: then no offset expires."""
    from tests.groups.members import subscription

    group = made()
    group.members["m-1"].protocols = (("range", subscription("a", "b")),)
    assert records.subscribed_topics(group) == {"a", "b"}
    group.members["m-1"].protocols = (("range", b"\0\0nonsense"),)
    assert records.subscribed_topics(group) is None
    assert records.subscribed_topics(made(protocol_type="connect")) is None
