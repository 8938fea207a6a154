"""DeleteRecords, InitProducerId and DescribeProducers, without sockets."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.protocol import messages as m
from tests.server.handlers.desk import ELSEWHERE, Desk
from tests.server.live import BASE_MS, batch

DELETED = m.DeleteRecordsRequest.Topics
DESCRIBED = m.DescribeProducersRequest.Topics


async def stock(desk: Desk, topic: str = "t", count: int = 3, **config: str) -> None:
    await desk.topic(topic, **config)
    for _ in range(count):
        await desk.replica(topic).append(batch(b"a"), 1)


async def delete(desk: Desk, *asked: tuple[str, int, int]) -> list[tuple[int, int]]:
    """Send DeleteRecords; return (error code, low watermark) of each (topic, partition, offset)."""
    topics = [DELETED(name=t, partitions=[DELETED.Partitions(partition_index=p, offset=o)]) for t, p, o in asked]
    answer = await desk.ask("DeleteRecords", 2, topics=topics, timeout_ms=1000)
    return [(p.error_code, p.low_watermark) for topic in answer.topics for p in topic.partitions]


async def test_records_go_up_to_an_offset(desk: Desk) -> None:
    """Offset -1 stands for the high watermark; deleting what is already deleted is no error."""
    await stock(desk)
    for offset, low in ((0, 0), (2, 2), (1, 2), (2, 2), (-1, 3), (3, 3)):
        assert await delete(desk, ("t", 0, offset)) == [(0, low)]
    assert desk.replica("t").partition().log_start_offset == 3


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("t", 0, 4), errors.OFFSET_OUT_OF_RANGE),
        (("t", 0, -2), errors.OFFSET_OUT_OF_RANGE),
        (("t", 1, 0), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (("none", 0, 0), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (("far", 0, 0), errors.NOT_LEADER_OR_FOLLOWER),
        (("kept", 0, 1), errors.POLICY_VIOLATION),
        ((OFFSETS_TOPIC, 0, 0), errors.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_records_that_cannot_be_deleted(desk: Desk, asked: tuple[str, int, int], code: int) -> None:
    """A refused partition loses no records, and the next partition of the request is served."""
    await stock(desk)
    await stock(desk, "u")
    await stock(desk, "kept", cleanup_policy="compact")
    await desk.topic("far", at=ELSEWHERE)
    assert await delete(desk, asked, ("u", 0, 1)) == [(code, -1), (0, 1)]
    assert desk.replica("t").partition().log_start_offset == 0
    assert desk.replica("kept").partition().log_start_offset == 0


async def test_a_partition_that_is_named_twice_goes_to_the_higher_offset(desk: Desk) -> None:
    """Both entries are answered with the resulting low watermark."""
    await stock(desk)
    assert await delete(desk, ("t", 0, 2), ("t", 0, 1)) == [(0, 2), (0, 2)]
    assert await delete(desk) == []


async def test_a_log_start_that_cannot_be_recorded_is_not_raised(desk: Desk) -> None:
    """The log start stays, as a start after a crash would bring the deleted records back."""
    await stock(desk)
    desk.replicas.arm("checkpoint.write", errno.ENOSPC, 2)
    assert await delete(desk, ("t", 0, 2)) == [(errors.KAFKA_STORAGE_ERROR, -1)]
    assert desk.replica("t").partition().log_start_offset == 0
    assert await delete(desk, ("t", 0, 2)) == [(0, 2)]


@pytest.mark.parametrize(
    ("transactional_id", "code"), [(None, 0), ("", errors.INVALID_REQUEST), ("a", errors.COORDINATOR_NOT_AVAILABLE)]
)
async def test_producer_ids(desk: Desk, transactional_id: str | None, code: int) -> None:
    """Each request gets another producer id; a transactional id has no coordinator before its topic is there."""
    drawn = []
    for _ in range(2):
        answer = await desk.ask(
            "InitProducerId", 4, transactional_id=transactional_id, transaction_timeout_ms=1,
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        assert (answer.error_code, answer.producer_epoch) == (code, -1 if code else 0)
        drawn.append(answer.producer_id)
    assert drawn == ([-1, -1] if code else [0, 1])


async def described(desk: Desk, *asked: tuple[str, list[int]]) -> list[Any]:
    topics = [DESCRIBED(name=name, partition_indexes=indexes) for name, indexes in asked]
    answer = await desk.ask("DescribeProducers", 0, topics=topics)
    return [partition for topic in answer.topics for partition in topic.partitions]


async def test_producers_are_described_with_their_last_batch(desk: Desk) -> None:
    await stock(desk, count=1)
    await desk.replica("t").append(batch(b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=0), 1)
    [found] = await described(desk, ("t", [0]))
    [producer] = found.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 1)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (BASE_MS + 1, -1)


async def test_partitions_whose_producers_cannot_be_described(desk: Desk) -> None:
    """Unknown partitions, another broker's, and those named twice are each answered with their error."""
    await stock(desk)
    await desk.topic("far", at=ELSEWHERE)
    found = await described(desk, ("t", [0, 1]), ("none", [0]), ("far", [0]), ("t", [2, 2]), ("u", []))
    twice = errors.INVALID_REQUEST
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    codes = [0, unknown, unknown, errors.NOT_LEADER_OR_FOLLOWER, twice, twice]
    assert [p.error_code for p in found] == codes
    assert all(bool(p.error_message) == bool(p.error_code) and p.active_producers == [] for p in found)
