"""Partitions of groups are led and resigned one by one, each with an epoch, so that late requests change nothing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.groups import coordinator
from pybroker.server.cluster.group_locator import GroupLocator
from pybroker.state_log.placement import partition_of
from tests import virtual
from tests.groups.consumers import Consumer, after
from tests.groups.logs import PARTITIONS, T0, T1, Bench, Replicated, at

G = "g"
HOME = partition_of(G, PARTITIONS)
OTHER = next(name for name in (f"g{n}" for n in range(99)) if partition_of(name, PARTITIONS) != HOME)


class Stage:
    """A coordinator of four partitions that leads none yet; its reads of logs can be held."""

    def __init__(self, directory: Path) -> None:
        self.workers = virtual.Inline()
        self.bench = Bench(directory, self.workers, Replicated)
        self.groups = self.bench.groups
        self.groups.partitions = PARTITIONS
        self.log = self.bench.logs[HOME]

    def lead(self, leader_epoch: int, index: int = HOME) -> None:
        self.groups.lead(index, leader_epoch, self.bench.logs[index])

    async def led(self, leader_epoch: int, index: int = HOME) -> None:
        self.lead(leader_epoch, index)
        await self.groups.loaded()

    async def stored(self, offset: int) -> None:
        """Let another coordinator store an offset of the group, and the member that commits it."""
        other = self.bench.fresh()
        other.partitions = PARTITIONS
        other.lead(HOME, 0, self.log)
        await self.log.move()
        await other.loaded()
        member = Consumer(other, G)
        await member.stable(self.log)
        assert await after(self.log, member.commit({T0: at(offset)})) == {T0: errors.NONE}
        other.resign_all()

    def stands(self, group: str = G) -> int:
        """The committed offset of the group, -1 if there is none; or a negated error code."""
        try:
            entry = self.groups.find(group)
        except KafkaError as problem:
            return -problem.code
        return entry.offsets[T0].offset if entry is not None and T0 in entry.offsets else -1


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.bench.close()


@virtual.story
async def test_a_partition_is_led_and_resigned_without_the_others(stage: Stage) -> None:
    """One partition goes from unknown to loaded to resigned, and another partition is served all the while."""
    await stage.stored(5)
    await stage.led(0, partition_of(OTHER, PARTITIONS))
    assert (stage.stands(G), stage.stands(OTHER)) == (-errors.NOT_COORDINATOR, -1)
    stage.workers.held = True
    stage.lead(3)
    await virtual.settle()
    assert (stage.stands(G), stage.stands(OTHER)) == (-errors.COORDINATOR_LOAD_IN_PROGRESS, -1)
    stage.workers.release()
    await stage.groups.loaded()
    assert stage.stands(G) == 5
    stage.groups.resign(HOME, 4)
    assert (stage.stands(G), stage.stands(OTHER)) == (-errors.NOT_COORDINATOR, -1)


@virtual.story
async def test_what_comes_late_of_an_older_epoch_changes_nothing(stage: Stage) -> None:
    """Late requests to lead or to resign do nothing; a resignation stays in force against older requests to lead."""
    await stage.stored(5)
    await stage.led(3)
    entry = stage.groups.find(G)
    for epoch in (3, 2):
        stage.lead(epoch)
        assert stage.groups.find(G) is entry and not stage.groups.loading()
    stage.groups.resign(HOME, 2)
    assert stage.groups.find(G) is entry
    stage.groups.resign(HOME, 4)
    for epoch in (3, 4):
        stage.lead(epoch)
        assert stage.stands() == -errors.NOT_COORDINATOR and not stage.groups.loading()
    await stage.led(5)
    assert stage.stands() == 5


@virtual.story
async def test_a_resignation_may_come_before_what_it_ends(stage: Stage) -> None:
    stage.groups.resign(HOME, 4)
    stage.lead(4)
    assert stage.stands() == -errors.NOT_COORDINATOR
    await stage.led(5)
    assert stage.stands() == -1


@virtual.story
async def test_a_load_that_ends_after_the_resignation_shows_nothing(stage: Stage) -> None:
    await stage.stored(5)
    stage.workers.held = True
    stage.lead(3)
    await virtual.settle()
    stage.groups.resign(HOME, 4)
    await stage.groups.loaded()
    stage.workers.release()
    await virtual.settle()
    assert stage.stands() == -errors.NOT_COORDINATOR and stage.groups.members._bytes == 0


@virtual.story
async def test_a_later_epoch_loads_by_itself(stage: Stage) -> None:
    """The older epoch's load ends first, late and without effect; the later one shows offsets stored since."""
    await stage.stored(5)
    stage.workers.held = True
    stage.lead(3)
    await virtual.settle()
    stage.lead(5)
    await virtual.settle()
    stage.workers.release()
    await virtual.settle()
    assert stage.stands() == -errors.COORDINATOR_LOAD_IN_PROGRESS
    stage.workers.held = False
    await stage.stored(6)
    stage.workers.release()
    await stage.groups.loaded()
    assert stage.stands() == 6


@virtual.story
async def test_what_is_not_committed_is_not_shown_after_a_load(stage: Stage) -> None:
    """The former leader left a record that its followers lack: it counts once they have it."""
    await stage.stored(5)
    seen = stage.log.high_watermark
    await stage.stored(6)
    stage.log.high_watermark = seen
    stage.lead(3)
    await asyncio.sleep(100)
    assert stage.stands() == -errors.COORDINATOR_LOAD_IN_PROGRESS
    await stage.log.move()
    assert stage.stands() == 6


@virtual.story
async def test_a_resignation_during_that_wait_shows_nothing(stage: Stage) -> None:
    await stage.stored(5)
    stage.log.high_watermark = 0
    stage.lead(3)
    await virtual.settle()
    stage.groups.resign(HOME, 4)
    await stage.log.move()
    assert stage.stands() == -errors.NOT_COORDINATOR and stage.groups.members._bytes == 0


@virtual.story
async def test_whoever_waits_is_told_at_once_to_look_for_another_coordinator(stage: Stage) -> None:
    """Waiting requests are answered at once: a join, a sync of a generation being stored, a static member's return, a
    stored or hanging commit, and a group's deletion. No timer is left, and the members' memory is free."""
    log = stage.log
    mine = [name for name in (f"m{n}" for n in range(99)) if partition_of(name, PARTITIONS) == HOME]
    await stage.led(0)
    groups = stage.groups
    leader, follower = Consumer(groups, mine[0]), Consumer(groups, mine[0])
    await leader.stable(log)
    still = Consumer(groups, mine[1], instance="i")
    await still.stable(log)
    back = Consumer(groups, mine[1], instance="i")
    storing = Consumer(groups, mine[2])
    assert (await storing.join()).error == errors.NONE
    ending = asyncio.create_task(groups.offsets.commit(mine[4], "", None, -1, {T0: at(1)}))
    await virtual.settle()
    await log.move()
    assert await ending == {T0: errors.NONE}
    answers = [
        asyncio.create_task(work)
        for work in (
            follower.join(),
            storing.sync(),
            back.join(),
            groups.offsets.commit(mine[3], "", None, -1, {T0: at(1)}),
            groups.offsets.delete(mine[4]),
        )
    ]
    await virtual.settle()
    log.appending.clear()
    answers.append(asyncio.create_task(groups.offsets.commit(mine[5], "", None, -1, {T0: at(1)})))
    await virtual.settle()
    assert not any(answer.done() for answer in answers)
    alarms = [entry.alarm for entry in groups.entries() if entry.alarm is not None]
    end = log.log_end_offset
    groups.resign(HOME, 1)
    async with asyncio.timeout(0.001):
        join, sync, static, commit, delete, hanging = await asyncio.gather(*answers)
    gone = errors.NOT_COORDINATOR
    assert (join.error, sync.error, static.error, delete) == (gone, gone, gone, gone)
    assert commit == hanging == {T0: gone}
    assert alarms and all(alarm.cancelled() for alarm in alarms)
    assert groups.members._bytes == 0
    log.appending.set()
    await log.move()
    assert groups.entries() == [] and log.log_end_offset == end + 1


@virtual.story
async def test_an_append_of_an_older_epoch_does_not_reach_the_log_of_a_later_one(stage: Stage) -> None:
    """A commit hung in the append while the partition was resigned and led again: what was loaded stays."""
    log = stage.log
    await stage.led(0)
    log.appending.clear()
    commit = asyncio.create_task(stage.groups.offsets.commit(G, "", None, -1, {T0: at(1)}))
    await virtual.settle()
    log.become_leader(2, 2)
    await stage.led(2)
    assert await commit == {T0: errors.NOT_COORDINATOR}
    log.appending.set()
    await virtual.settle()
    assert log.log_end_offset == 0
    commit = asyncio.create_task(stage.groups.offsets.commit(G, "", None, -1, {T1: at(2)}))
    await virtual.settle()
    await log.move()
    assert await commit == {T1: errors.NONE}
    assert log.seen_by_the_next()[G].offsets == stage.groups.find(G).offsets  # type: ignore[union-attr]


@virtual.story
async def test_an_append_that_fails_as_nobody_foresaw_leaves_nobody_waiting(stage: Stage) -> None:
    """The groups of the partition have no coordinator afterwards, unless they were loaded again meanwhile."""
    log = stage.log

    async def broken(*_: object) -> core.Appended:
        await log.appending.wait()
        raise ZeroDivisionError

    await stage.led(0)
    log.append = broken  # type: ignore[method-assign]
    assert await stage.groups.offsets.commit(G, "", None, -1, {T0: at(1)}) == {T0: errors.NOT_COORDINATOR}
    assert stage.stands() == -errors.NOT_COORDINATOR
    await stage.led(1)
    log.appending.clear()
    hanging = asyncio.create_task(stage.groups.offsets.commit(G, "", None, -1, {T0: at(1)}))
    await virtual.settle()
    await stage.led(2)
    assert await hanging == {T0: errors.NOT_COORDINATOR}
    log.appending.set()
    await virtual.settle()
    assert stage.stands() == -1


@pytest.mark.parametrize("problem", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("no more threads")])
@virtual.story
async def test_groups_that_could_not_be_loaded_are_loaded_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    """The partition is still led here, so no other broker loads its groups. Clients get NOT_COORDINATOR and come
    again."""
    await stage.stored(7)
    load, times = coordinator.load, 0

    def fails(*given: Any) -> Any:
        nonlocal times
        times += 1
        if times < 4:
            raise problem
        return load(*given)

    monkeypatch.setattr(coordinator, "load", fails)
    stage.lead(1)
    await asyncio.wait_for(stage.groups.loaded(), 5)
    assert stage.stands() == -errors.NOT_COORDINATOR
    await asyncio.sleep(5)
    assert (stage.stands(), times) == (7, 4)
    said = [r for r in caplog.records if r.getMessage().startswith("groups not loaded")]
    assert len(said) == 3 and all(bool(r.exc_info) == isinstance(problem, RuntimeError) for r in said)


@virtual.story
async def test_the_offsets_topic_is_made_anew(stage: Stage) -> None:
    """A recreated topic's leader epochs start again, and a late stop of the old topic's replica changes nothing."""
    metadata, nobody = MetadataCache("c"), Any
    located = GroupLocator(metadata, nobody, stage.groups)  # type: ignore[arg-type]
    log = stage.log

    def replica(topic_id: bytes) -> Any:
        class OfTopic:
            def __getattr__(self, name: str) -> Any:
                return getattr(log, name)

        made: Any = OfTopic()
        made.topic_id = topic_id
        return made

    first, second = replica(b"1" * 16), replica(b"2" * 16)
    located.lead(first, True, 5, False)
    await stage.groups.loaded()
    assert stage.stands() == -1
    located.lead(second, True, 0, False)
    await stage.groups.loaded()
    assert stage.stands() == -1
    located.lead(first, False, 5, False)
    assert stage.stands() == -1
    located.lead(second, False, 1, False)
    assert stage.stands() == -errors.NOT_COORDINATOR
