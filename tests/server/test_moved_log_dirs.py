"""AlterReplicaLogDirs moves a partition to another log dir while clients use it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.replication.disks import moves
from tests.harness import eventually
from tests.server.live import Live, Wire, batch

ASKED = m.AlterReplicaLogDirsRequest.Dirs
STUCK_MS = 60_000
SLOW = "replica.alter.log.dirs.io.max.bytes.per.second=50000"


class Disks:
    """A broker with two log dirs, and a client."""

    def __init__(self, tmp_path: Path) -> None:
        self.dirs = tmp_path / "a", tmp_path / "b"
        self.tmp_path = tmp_path
        self.live: Live
        self.wire: Wire

    async def start(self, *settings: str) -> None:
        self.live = Live(self.tmp_path, [f"log.dirs={self.dirs[0]},{self.dirs[1]}", *settings])
        await self.live.start()
        self.wire = await self.live.connect()

    async def crash(self) -> None:
        self.live.hang_up()
        broker, self.live.broker = self.live.broker, None
        assert broker is not None
        await broker.abort()

    async def move(self, to: Path | str, topic: str = "t", index: int = 0, version: int = 2) -> int:
        topics = [ASKED.Topics(name=topic, partitions=[index])]
        answer = await self.wire.call("AlterReplicaLogDirs", version, dirs=[ASKED(path=str(to), topics=topics)])
        code: int = answer.results[0].partitions[0].error_code
        return code

    async def places(self, topic: str = "t") -> dict[tuple[str, bool], Any]:
        """The replicas of partition 0, by the name of the log dir and whether it is a copy."""
        answer = await self.wire.call("DescribeLogDirs", 4, topics=None)
        return {
            (Path(result.log_dir).name, p.is_future_key): p
            for result in answer.results
            for found in result.topics
            for p in found.partitions
            if (found.name, p.partition_index) == (topic, 0)
        }

    def here(self, topic: str = "t") -> Path:
        """The log dir that the partition is in now."""
        [found] = [path for path in self.dirs if (path / f"{topic}-0").exists()]
        return found

    def other(self, topic: str = "t") -> Path:
        return self.dirs[0] if self.here(topic) == self.dirs[1] else self.dirs[1]

    def names(self) -> list[str]:
        """The directories of t-0 that are not a log in use or waiting for its removal."""
        return sorted(p.name for path in self.dirs for p in path.glob("t-0*") if not p.name.endswith("-delete"))

    async def moved(self, to: Path) -> None:
        async def is_there() -> bool:
            return set(await self.places()) == {(to.name, False)}

        await eventually("the partition has moved", is_there)

    async def fill(self, batches: int = 200, size: int = 1000) -> None:
        for n in range(batches):
            await self.wire.produce("t", batch(bytes([n % 256]) * size))

    async def records(self) -> bytes:
        """All batches of the partition."""
        out, offset = b"", 0
        while True:
            found = (await self.wire.fetch("t", offset)).records or b""
            if not found:
                return out
            out += found
            offset = _end(found)


def _end(data: bytes) -> int:
    at = last = 0
    while at < len(data):
        last = at
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return int.from_bytes(data[last : last + 8], "big") + int.from_bytes(data[last + 23 : last + 27], "big") + 1


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[Disks]:
    disks = Disks(tmp_path)
    yield disks
    with contextlib.suppress(AttributeError):
        await disks.live.stop()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_partition_moves_while_it_is_written_to(disks: Disks, version: int) -> None:
    """Every acknowledged record is there in its order, in the new log dir alone, also after a restart."""
    await disks.start()
    await disks.wire.create("t", segment_bytes="20000")
    await disks.fill()
    to, producer, done = disks.other(), await disks.live.connect(), asyncio.Event()

    async def produce() -> int:
        count = 0
        while not done.is_set():
            assert (await producer.produce("t", batch(b"%d" % count))).error_code == 0
            count += 1
        return count

    task = asyncio.create_task(produce())
    assert await disks.move(to, version=version) == 0
    await disks.moved(to)
    done.set()
    count = await task
    records = await disks.records()
    assert _end(records) == 200 + count
    assert disks.names() == ["t-0"] and disks.here() == to
    for clean in (True, False):
        await (disks.live.stop() if clean else disks.crash())
        await disks.start()
        assert await disks.records() == records
        assert set(await disks.places()) == {(to.name, False)}


async def test_a_copy_is_shown_with_its_lag(disks: Disks) -> None:
    """While it is copied, at a rate, DescribeLogDirs has both; another target, or the present one, ends that."""
    await disks.start(SLOW)
    await disks.wire.create("t")
    await disks.fill()
    here, to = disks.here(), disks.other()
    assert await disks.move(to) == 0
    assert await disks.move(to) == 0, "asked again, it goes on"
    places = await disks.places()
    assert set(places) == {(here.name, False), (to.name, True)}
    assert 0 < places[to.name, True].offset_lag <= 200
    assert places[to.name, True].partition_size < places[here.name, False].partition_size
    assert await disks.move(here) == 0
    await disks.moved(here)
    await eventually("the copy is removed", lambda: disks.names() == ["t-0"])
    assert disks.here() == here
    assert await disks.move(to) == 0
    await disks.wire.call("DeleteTopics", 1, topic_names=["t"], timeout_ms=5000)
    await eventually("nothing is left of a deleted topic", lambda: disks.names() == [])


async def test_a_restart_begins_the_move_again(disks: Disks) -> None:
    """A move that a stop or a crash interrupts goes on after the next start."""
    for clean in (True, False):
        await disks.start(SLOW)
        if clean:
            await disks.wire.create("t")
            await disks.fill()
        to, records = disks.other(), await disks.records()
        assert await disks.move(to) == 0
        await eventually("the copy has begun", lambda: len(disks.names()) == 2)
        await (disks.live.stop() if clean else disks.crash())
        assert len(disks.names()) == 2
        await disks.start()
        await disks.moved(to)
        assert await disks.records() == records and disks.names() == ["t-0"]
        await disks.live.stop()


@pytest.mark.parametrize("point", ["move.copy", "move.sync", "move.rename", "move.leave", "directory.sync"])
async def test_others_do_not_wait_for_a_move(disks: Disks, point: str) -> None:
    """While a step of a move hangs, other partitions are written to in both log dirs; but for the last steps, so is the
    partition that moves."""
    await disks.start()
    others = [await disks.wire.topic() for _ in range(4)]
    await disks.wire.create("t")
    await disks.fill(20)
    assert {disks.here(name) for name in others} == set(disks.dirs)
    to = disks.other()
    core = disks.live.broker.replicas._core  # type: ignore[union-attr]
    core.arm(point, "sleep", STUCK_MS, under="t-0" if point != "directory.sync" else "-future")
    assert await disks.move(to) == 0
    await eventually("the step hangs", lambda: core.sleeping > 0)
    for name in others:
        assert (await disks.wire.produce(name, batch(b"x"))).error_code == 0
    if point not in ("move.rename", "move.leave"):
        assert (await disks.wire.produce("t", batch(b"x"))).error_code == 0
    assert core.sleeping > 0
    core.disarm()
    await disks.moved(to)
    assert (await disks.wire.produce("t", batch(b"x"))).error_code == 0


async def test_a_bug_that_is_planted_is_found(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted records are back after a crash if their log start is not recorded in the new log dir: the check of
    test_deleted_records_stay_deleted fails then."""
    monkeypatch.setattr(moves, "LOG_STARTS", moves.CLEANED)
    with pytest.raises(AssertionError):
        await deleted_records_stay_deleted(disks)


async def test_what_cannot_be_moved(disks: Disks) -> None:
    """An unknown log dir or partition, a failed disk, and one that is too small each have their answer."""
    await disks.start()
    await disks.wire.create("t")
    to = disks.other()
    assert await disks.move("/nowhere") == errors.LOG_DIR_NOT_FOUND
    assert await disks.move(to, "none") == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert await disks.move(to, "t", 1) == errors.UNKNOWN_TOPIC_OR_PARTITION
    disks.live.broker.replicas.log_dirs[disks.dirs.index(to)].fail("a test says so")  # type: ignore[union-attr]
    assert await disks.move(to) == errors.KAFKA_STORAGE_ERROR
    assert set(await disks.places()) == {(disks.here().name, False)}


async def test_the_log_dir_of_a_partition_that_is_not_here_yet(disks: Disks) -> None:
    """The log dir is remembered for the creation of the partition."""
    await disks.start()
    for n, to in enumerate(disks.dirs * 2):
        assert await disks.move(to, f"new{n}") == errors.UNKNOWN_TOPIC_OR_PARTITION
        await disks.wire.create(f"new{n}")
        assert disks.here(f"new{n}") == to


async def test_deleted_records_stay_deleted(disks: Disks) -> None:
    """The log start moves with the log."""
    await deleted_records_stay_deleted(disks)


async def deleted_records_stay_deleted(disks: Disks) -> None:
    await disks.start()
    await disks.wire.create("t")
    await disks.fill(20)
    kind = m.DeleteRecordsRequest.Topics
    topics = [kind(name="t", partitions=[kind.Partitions(partition_index=0, offset=7)])]
    await disks.wire.call("DeleteRecords", 2, topics=topics, timeout_ms=5000)
    to = disks.other()
    assert await disks.move(to) == 0
    await disks.moved(to)
    await disks.crash()
    await disks.start()
    assert (await disks.wire.fetch("t", 6)).error_code == errors.OFFSET_OUT_OF_RANGE
    assert (await disks.wire.fetch("t", 7)).error_code == 0
