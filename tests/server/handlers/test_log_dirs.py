"""DescribeLogDirs and AlterReplicaLogDirs, without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.server.handlers.desk import ELSEWHERE, Desk
from tests.server.live import batch

ASKED = m.DescribeLogDirsRequest.Topics
MOVED = m.AlterReplicaLogDirsRequest.Dirs


async def stock(desk: Desk) -> int:
    """Create two topics, with one batch in t-1; return its size."""
    await desk.topic("t", 2)
    await desk.topic("u")
    await desk.replica("t", 1).append(batch(b"a"), 1)
    return desk.replica("t", 1).partition().size


async def describe(desk: Desk, topics: list[Any] | None) -> Any:
    [found] = (await desk.ask("DescribeLogDirs", 4, topics=topics)).results
    return found


def sizes(found: Any) -> dict[str, dict[int, int]]:
    return {topic.name: {p.partition_index: p.partition_size for p in topic.partitions} for topic in found.topics}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (None, {"t": [0, 1], "u": [0]}),
        ([], {}),
        ([ASKED(topic="t", partitions=[1])], {"t": [1]}),
        ([ASKED(topic="t", partitions=[1, 1]), ASKED(topic="t", partitions=[1])], {"t": [1]}),
        ([ASKED(topic="t", partitions=[7, -1]), ASKED(topic="none", partitions=[0])], {}),
        ([ASKED(topic="u", partitions=[])], {}),
    ],
)
async def test_what_lies_there(desk: Desk, asked: list[Any] | None, told: dict[str, list[int]]) -> None:
    """DescribeLogDirs lists all partitions, or each known one that is named, once, and the disk's bytes."""
    size = await stock(desk)
    found = await describe(desk, asked)
    assert (found.error_code, found.log_dir) == (0, str(desk.log_dir_path))
    assert found.total_bytes >= found.usable_bytes > 0
    assert sizes(found) == {name: {p: size if (name, p) == ("t", 1) else 0 for p in ps} for name, ps in told.items()}


async def test_a_log_dir_that_failed(desk: Desk) -> None:
    """A failed log dir is described with its error and no partitions; its partitions cannot be moved."""
    await stock(desk)
    desk.log_dir.fail("it is told so")
    found = await describe(desk, None)
    assert (found.error_code, found.topics) == (errors.KAFKA_STORAGE_ERROR, [])
    assert await move(desk, str(desk.log_dir_path), t=[0]) == [("t", 0, errors.KAFKA_STORAGE_ERROR)]


async def move(desk: Desk, path: str, **partitions: list[int]) -> list[tuple[str, int, int]]:
    topics = [MOVED.Topics(name=name, partitions=indexes) for name, indexes in partitions.items()]
    answer = await desk.ask("AlterReplicaLogDirs", 2, dirs=[MOVED(path=path, topics=topics)])
    return [(t.topic_name, p.partition_index, p.error_code) for t in answer.results for p in t.partitions]


async def test_a_partition_stays_where_it_is(desk: Desk) -> None:
    """AlterReplicaLogDirs takes only the current log dir's absolute path; other brokers' partitions are refused."""
    await stock(desk)
    await desk.topic("far", at=ELSEWHERE)
    here, unknown = str(desk.log_dir_path), errors.UNKNOWN_TOPIC_OR_PARTITION
    assert await move(desk, here, t=[1, 0], none=[0]) == [("t", 1, 0), ("t", 0, 0), ("none", 0, unknown)]
    assert await move(desk, here, far=[0], t=[5]) == [("far", 0, errors.REPLICA_NOT_AVAILABLE), ("t", 5, unknown)]
    for path in ("", "data", here + "/", "/nowhere"):
        assert await move(desk, path, t=[0]) == [("t", 0, errors.LOG_DIR_NOT_FOUND)]
    assert (await desk.ask("AlterReplicaLogDirs", 2, dirs=[])).results == []
