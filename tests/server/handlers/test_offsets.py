"""ListOffsets and OffsetForLeaderEpoch, without sockets: each special timestamp, each version, and leader epochs."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.server.api.handlers.offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from tests.server.handlers.desk import ELSEWHERE, Desk
from tests.server.live import BASE_MS, batch

LISTED = m.ListOffsetsRequest.Topics
EPOCHS = m.OffsetForLeaderEpochRequest.Topics


async def stock(desk: Desk) -> None:
    """Append offsets 0 and 1 in epoch 0 (BASE_MS and 1 ms later) and 2 in epoch 5 (BASE_MS + 10); delete offset 0."""
    await desk.topic("t")
    replica = desk.replica("t")
    await replica.append(batch(b"a", b"b"), 1)
    replica.partition().become_leader(5, 1)
    await replica.append(batch(b"c", timestamp_ms=BASE_MS + 10), 1)
    replica.partition().set_log_start(1)


async def listed(desk: Desk, timestamp: int, version: int = 9, partition: int = 0, epoch: int = -1, **how: int) -> Any:
    """Send ListOffsets; return (error code, offset, timestamp, leader epoch)."""
    asked = LISTED.Partitions(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
    how = {"replica_id": -1, **how}
    answer = await desk.ask("ListOffsets", version, topics=[LISTED(name="t", partitions=[asked])], **how)
    [found] = answer.topics[0].partitions
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (LATEST, (0, 3, -1, 5)),
        (EARLIEST, (0, 1, -1, 0)),
        (EARLIEST_LOCAL, (0, 1, -1, 0)),
        (LATEST_TIERED, (0, -1, -1, -1)),
        (MAX_TIMESTAMP, (0, 2, BASE_MS + 10, 5)),
        (0, (0, 1, BASE_MS + 1, 0)),
        (BASE_MS + 1, (0, 1, BASE_MS + 1, 0)),
        (BASE_MS + 2, (0, 2, BASE_MS + 10, 5)),
        (BASE_MS + 11, (0, -1, -1, -1)),
        ((1 << 63) - 1, (0, -1, -1, -1)),
        (-6, (errors.UNSUPPORTED_VERSION, -1, -1, -1)),
    ],
)
async def test_what_a_timestamp_means(desk: Desk, timestamp: int, found: tuple[int, int, int, int]) -> None:
    """A timestamp finds the first record that is not older; a deleted record is not found."""
    await stock(desk)
    assert await listed(desk, timestamp) == found


@pytest.mark.parametrize(
    ("timestamp", "since"), [(LATEST, 1), (EARLIEST, 1), (MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)]
)
async def test_meanings_have_their_versions(desk: Desk, timestamp: int, since: int) -> None:
    await stock(desk)
    assert (await listed(desk, timestamp, since))[0] == 0
    if since > 1:
        assert (await listed(desk, timestamp, since - 1))[0] == errors.UNSUPPORTED_VERSION


async def test_an_empty_log(desk: Desk) -> None:
    await desk.topic("t")
    assert await listed(desk, LATEST) == await listed(desk, EARLIEST) == (0, 0, -1, 0)
    assert await listed(desk, MAX_TIMESTAMP) == await listed(desk, 0) == (0, -1, -1, -1)


async def test_who_may_ask(desk: Desk) -> None:
    """A client gets offsets of a partition that exists, is led by this broker, and whose leader epoch it has right."""
    await stock(desk)
    assert (await listed(desk, LATEST, partition=1))[:2] == (errors.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert (await listed(desk, LATEST, epoch=4))[:2] == (errors.FENCED_LEADER_EPOCH, -1)
    assert (await listed(desk, LATEST, epoch=6))[:2] == (errors.UNKNOWN_LEADER_EPOCH, -1)
    assert (await listed(desk, LATEST, epoch=5))[:2] == (0, 3)
    await desk.topic("far", at=ELSEWHERE)
    asked = [LISTED(name="far", partitions=[LISTED.Partitions(partition_index=0, timestamp=LATEST)])]
    answer = await desk.ask("ListOffsets", 9, replica_id=-1, topics=asked)
    assert answer.topics[0].partitions[0].error_code == errors.NOT_LEADER_OR_FOLLOWER


async def test_a_partition_that_is_listed_twice(desk: Desk) -> None:
    """A partition that is listed twice, even in two topic entries, is refused; the others are answered."""
    await stock(desk)
    await desk.topic("u")
    asked = [LISTED.Partitions(partition_index=0, timestamp=LATEST)]
    topics = [LISTED(name=name, partitions=asked) for name in ("t", "u", "t")]
    answer = await desk.ask("ListOffsets", 9, replica_id=-1, topics=topics)
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert codes == [errors.INVALID_REQUEST, 0, errors.INVALID_REQUEST]
    assert (await desk.ask("ListOffsets", 9, replica_id=-1, topics=[])).topics == []


async def test_a_batch_that_is_damaged(desk: Desk) -> None:
    """A look-up by time that reads a damaged batch gets CORRUPT_MESSAGE; one that does not read it succeeds."""
    await stock(desk)
    log = desk.replica("t").partition()
    log.roll()
    log.flush()
    path = next(iter(sorted((desk.log_dir_path / "t-0").glob("*.log"))))
    data = bytearray(path.read_bytes())
    data[70] ^= 0xFF
    path.write_bytes(data)
    assert (await listed(desk, BASE_MS + 1))[0] == errors.CORRUPT_MESSAGE
    assert (await listed(desk, LATEST))[0] == 0


@pytest.mark.parametrize(
    ("epoch", "current", "found"),
    [
        (5, -1, (0, 5, 3)),
        (0, 5, (0, 0, 2)),
        (4, -1, (0, 0, 2)),
        (6, -1, (0, -1, -1)),
        (-1, -1, (0, -1, -1)),
        (5, 4, (errors.FENCED_LEADER_EPOCH, -1, -1)),
        (5, 6, (errors.UNKNOWN_LEADER_EPOCH, -1, -1)),
    ],
)
async def test_where_an_epoch_ended(desk: Desk, epoch: int, current: int, found: tuple[int, int, int]) -> None:
    """The answer is the largest epoch up to the asked one, and its end offset; -1 for an unknown epoch."""
    await stock(desk)
    kind = EPOCHS.Partitions
    asked = [kind(partition=p, current_leader_epoch=current, leader_epoch=epoch) for p in (0, 7)]
    topics = [EPOCHS(topic="t", partitions=asked), EPOCHS(topic="none", partitions=asked[:1])]
    answer = await desk.ask("OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics)
    first, second = answer.topics[0].partitions
    assert (first.error_code, first.leader_epoch, first.end_offset) == found
    assert (second.error_code, second.end_offset) == (errors.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert answer.topics[1].partitions[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
