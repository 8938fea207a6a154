"""Produce, without sockets: each partition is handled on its own, and acks=0 gets no answer."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.caller import Disconnect
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.protocol import messages as m
from tests.server.handlers.desk import ELSEWHERE, Desk
from tests.server.live import batch

DATA = m.ProduceRequest.TopicData
TRANSACTIONAL, CODEC_AT, ZSTD = 0x10, 22, 4


def data(topic: str | bytes, **records: bytes | None) -> Any:
    """Build the topic data of a request; partitions are given as p0=..., p1=..."""
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    return DATA(
        partition_data=[DATA.PartitionData(index=int(name[1:]), records=r) for name, r in records.items()], **named
    )


async def produce(desk: Desk, *topics: Any, version: int = 12, acks: int = -1) -> Any:
    return await desk.ask("Produce", version, acks=acks, timeout_ms=1000, topic_data=list(topics))


async def one(desk: Desk, topic: str | bytes, records: bytes | None, **how: Any) -> Any:
    """Produce to one partition; return its part of the answer."""
    [answer] = (await produce(desk, data(topic, p0=records), **how)).responses
    [partition] = answer.partition_responses
    return partition


async def test_partitions_are_answered_in_their_order(desk: Desk) -> None:
    """Each partition is answered with the base offset of its batch, or with its error."""
    await desk.topic("t", 2)
    await desk.topic("u", message_timestamp_type="LogAppendTime")
    twice = batch(b"a", b"b")
    answer = await produce(desk, data("t", p1=twice, p9=twice, p0=twice), data("u", p0=batch(b"c")))
    found = [[(p.index, p.error_code, p.base_offset) for p in topic.partition_responses] for topic in answer.responses]
    assert found == [[(1, 0, 0), (9, errors.UNKNOWN_TOPIC_OR_PARTITION, -1), (0, 0, 0)], [(0, 0, 0)]]
    [stamped] = answer.responses[1].partition_responses
    assert stamped.log_append_time_ms > 0 and desk.replica("t", 1).partition().log_end_offset == 2


async def test_by_id(desk: Desk) -> None:
    topic_id = await desk.topic("t")
    assert (await one(desk, topic_id, batch(b"a"), version=13)).error_code == 0
    assert (await one(desk, b"x" * 16, batch(b"a"), version=13)).error_code == errors.UNKNOWN_TOPIC_ID
    assert desk.replica("t").partition().log_end_offset == 1


def with_attributes(bits: int, **how: Any) -> bytes:
    made = bytearray(batch(b"a", **how))
    made[CODEC_AT] |= bits
    return bytes(made)


@pytest.mark.parametrize(
    ("records", "version", "code"),
    [
        (None, 12, errors.INVALID_RECORD),
        (b"", 12, errors.INVALID_RECORD),
        (b"short", 12, errors.CORRUPT_MESSAGE),
        (batch(b"a")[:-1], 12, errors.CORRUPT_MESSAGE),
        (batch(b"a") + b"x", 12, errors.INVALID_RECORD),
        (batch(b"a") * 2, 12, errors.INVALID_RECORD),
        (with_attributes(0x20), 12, errors.CORRUPT_MESSAGE),
        (with_attributes(ZSTD), 6, errors.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(b"a" * 3000), 12, errors.MESSAGE_TOO_LARGE),
    ],
    ids=["null", "empty", "no header", "cut", "a byte more", "two", "control", "zstd", "too large"],
)
async def test_a_batch_that_is_not_taken(desk: Desk, records: bytes | None, version: int, code: int) -> None:
    """An invalid batch is not appended, and the next partition is served."""
    await desk.topic("t", 2, max_message_bytes="2000")
    answer = await produce(desk, data("t", p0=records, p1=batch(b"a")), version=version)
    bad, good = answer.responses[0].partition_responses
    assert (bad.error_code, bad.base_offset, good.error_code) == (code, -1, 0)
    assert bool(bad.error_message) == (version >= 8)
    assert desk.replica("t").partition().log_end_offset == 0


async def test_records_that_break_the_rules_of_their_topic(desk: Desk) -> None:
    """The answer lists invalid records by their index in the batch."""
    await desk.topic("t", cleanup_policy="compact")
    answer = await one(desk, "t", batch(b"a", b"b", key=None))
    assert answer.error_code == errors.INVALID_RECORD
    assert [fault.batch_index for fault in answer.record_errors] == [0, 1]
    assert all("without key" in fault.batch_index_error_message for fault in answer.record_errors)


@pytest.mark.parametrize("acks", [-2, 2, 127])
async def test_acks_that_there_are_not(desk: Desk, acks: int) -> None:
    await desk.topic("t")
    assert (await one(desk, "t", batch(b"a"), acks=acks)).error_code == errors.INVALID_REQUIRED_ACKS
    assert desk.replica("t").partition().log_end_offset == 0


async def test_without_acks_an_error_closes(desk: Desk) -> None:
    """With acks=0 there is no answer for an error, so the broker closes the connection; valid batches are appended."""
    await desk.topic("t", 2)
    assert await produce(desk, data("t", p0=batch(b"a")), acks=0) is None
    with pytest.raises(Disconnect, match="t-9: UNKNOWN_TOPIC_OR_PARTITION"):
        await produce(desk, data("t", p9=batch(b"a"), p1=batch(b"b")), acks=0)
    assert desk.replica("t", 1).partition().log_end_offset == 1


async def test_a_partition_that_another_broker_leads(desk: Desk) -> None:
    """Another broker's partition is refused without a message; versions with that field get its leader (KIP-951)."""
    await desk.topic("t", at=ELSEWHERE)
    for version, named in ((9, None), (10, (ELSEWHERE, 0))):
        answer = await produce(desk, data("t", p0=batch(b"a")), version=version)
        [partition] = answer.responses[0].partition_responses
        assert (partition.error_code, partition.error_message) == (errors.NOT_LEADER_OR_FOLLOWER, None)
        leader = partition.current_leader
        assert (None if leader is None else (leader.leader_id, leader.leader_epoch)) == named
        assert [node.node_id for node in answer.node_endpoints] == ([] if named is None else [ELSEWHERE])


async def test_what_producers_are_held_to(desk: Desk) -> None:
    """A sequence gap, a duplicate batch and an old producer epoch each get their own answer."""
    await desk.topic("t")

    async def send(epoch: int, sequence: int) -> tuple[int, int]:
        answer = await one(desk, "t", batch(b"a", producer_id=7, producer_epoch=epoch, base_sequence=sequence))
        assert answer.error_message is None
        return answer.error_code, answer.base_offset

    assert await send(1, 0) == (0, 0) and await send(1, 1) == (0, 1)
    assert await send(1, 5) == (errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await send(1, 0) == (0, 0)
    assert await send(0, 0) == (errors.INVALID_PRODUCER_EPOCH, -1)
    assert desk.replica("t").partition().log_end_offset == 2


async def test_topics_of_brokers_are_not_written(desk: Desk) -> None:
    topic_id = await desk.topic(OFFSETS_TOPIC)
    for named, version in ((OFFSETS_TOPIC, 12), (topic_id, 13)):
        answer = await one(desk, named, batch(b"a"), version=version)
        assert answer.error_code == errors.INVALID_TOPIC_EXCEPTION


async def test_a_disk_that_fails(desk: Desk) -> None:
    """A failed write gets KAFKA_STORAGE_ERROR, and so does each later one."""
    await desk.topic("t")
    desk.replicas.arm("segment.write", errno.EIO, 1)
    offline = "the partition's log dir is offline: its disk failed, see the broker's log"
    for words in ("cannot write to the partition's log dir: Input/output error", offline):
        answer = await one(desk, "t", batch(b"a"))
        expected = (errors.KAFKA_STORAGE_ERROR, words)
        assert (answer.error_code, answer.error_message) == expected
    assert desk.replica("t").offline


async def test_an_empty_request(desk: Desk) -> None:
    await desk.topic("t")
    assert (await produce(desk)).responses == []
    [answer] = (await produce(desk, data("t"))).responses
    assert answer.partition_responses == []
