"""A change of a group is answered and visible once the followers have its record; waiting requests delay no others.

After each story the coordinator has what another one finds in the log.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.group import State
from pybroker.decisions.offsets import Committed
from pybroker.errors import KafkaError
from pybroker.groups.offsets import SWEEP_GROUPS
from pybroker.state_log.placement import partition_of
from tests import virtual
from tests.groups.consumers import SESSION_MS, Consumer, after
from tests.groups.logs import PARTITIONS, T0, T1, Bench, Replicated
from tests.groups.logs import at as at_wall

HOME = partition_of("g", PARTITIONS)
G, H = [name for name in (f"g{n}" for n in range(99)) if partition_of(name, PARTITIONS) == HOME][:2]
"""Two groups in one partition."""
SETS = ("group.initial.rebalance.delay.ms=0", "offsets.retention.minutes=1")
MINUTE_MS = 60_000


def at(offset: int, commit_ms: int = virtual.EPOCH_MS) -> Committed:
    return at_wall(offset, commit_ms)


class Stage:
    """A coordinator that leads the partition of two groups, with followers that fetch when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.bench = Bench(directory, virtual.Inline(), Replicated)
        self.log: Replicated = self.bench.logs[HOME]

    async def begin(self, *sets: str) -> None:
        self.groups = self.bench.fresh(*SETS, *sets, wall_ms=virtual.wall_ms)
        await self.bench.lead(self.groups)

    def ask(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.create_task(work)

    def commit(self, group: str = G, **partitions: int) -> asyncio.Task[Any]:
        """Commit offsets without a member: `commit(t0=5)` is offset 5 in t-0."""
        places = {T0: partitions.get("t0"), T1: partitions.get("t1")}
        offsets = {key: at(offset) for key, offset in places.items() if offset is not None}
        return self.ask(self.groups.offsets.commit(group, "", None, -1, offsets))

    def stands(self, group: str = G) -> dict[str, int]:
        entry = self.groups.find(group)
        offsets = entry.offsets if entry is not None else {}
        return {f"{key.topic}{key.partition}": committed.offset for key, committed in offsets.items()}

    def state(self, group: str = G) -> State:
        entry = self.groups.find(group)
        assert entry is not None
        return entry.group.state

    def check(self) -> None:
        """Check that the coordinator has the settled groups that the next one would load."""
        found = self.log.seen_by_the_next()
        shown = {entry.group.id: entry for entry in self.groups.entries()}
        assert {name: e.offsets for name, e in shown.items() if e.offsets} == {
            name: e.offsets for name, e in found.items() if e.offsets
        }
        for name, entry in shown.items():
            if entry.group.state is State.STABLE and not entry.writes:
                other = found[name].group
                assert (other.generation, other.leader) == (entry.group.generation, entry.group.leader)
                assert {m.id: m.assignment for m in other.members.values()} == {
                    m.id: m.assignment for m in entry.group.members.values()
                }
        assert not [name for name, e in found.items() if name not in shown]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.check()
    made.bench.close()


# -- commits ----------------------------------------------------------------------------------------------------------


@virtual.story
async def test_a_commit_is_answered_and_shown_when_it_is_committed(stage: Stage) -> None:
    """The group keeps its former offset until the record is committed."""
    await stage.begin()
    assert await after(stage.log, stage.groups.offsets.commit(G, "", None, -1, {T0: at(5)})) == {T0: 0}
    second = stage.commit(t0=6, t1=1)
    await asyncio.sleep(4)
    assert not second.done() and stage.stands() == {"t0": 5}
    await stage.log.move()
    assert await second == {T0: 0, T1: 0} and stage.stands() == {"t0": 6, "t1": 1}


@virtual.story
async def test_commits_wait_side_by_side_and_are_answered_in_the_order_of_the_log(stage: Stage) -> None:
    """All commits are in the log at once; they are answered as the followers fetch them."""
    await stage.begin()
    asked = [stage.commit(G, t0=1), stage.commit(H, t0=2), stage.commit(G, t0=3)]
    await virtual.settle()
    assert stage.log.log_end_offset == 3 and (stage.stands(G), stage.stands(H)) == ({}, {})
    await stage.log.move(1)
    assert [one.done() for one in asked] == [True, False, False]
    assert (stage.stands(G), stage.stands(H)) == ({"t0": 1}, {})
    await stage.log.move()
    assert all(one.done() for one in asked)
    assert (stage.stands(G), stage.stands(H)) == ({"t0": 3}, {"t0": 2})


@virtual.story
async def test_a_commit_that_comes_too_late_counts_when_it_comes(stage: Stage) -> None:
    """The client gets COORDINATOR_NOT_AVAILABLE after offsets.commit.timeout.ms; the record stays in the log."""
    await stage.begin("offsets.commit.timeout.ms=3000")
    asked = stage.commit(t0=5)
    await asyncio.sleep(2.9)
    assert not asked.done()
    await asyncio.sleep(0.2)
    assert await asked == {T0: errors.COORDINATOR_NOT_AVAILABLE} and stage.stands() == {}
    stage.check()
    await stage.log.move()
    assert stage.stands() == {"t0": 5}


@virtual.story
async def test_a_commit_that_the_log_refuses_was_never_made(stage: Stage) -> None:
    """With too few in-sync replicas the commit creates no group, and a waiting commit goes on."""
    await stage.begin()
    waits = stage.commit(H, t0=1)
    await virtual.settle()
    stage.log.refuses = errors.NOT_ENOUGH_REPLICAS
    assert await stage.commit(G, t0=5) == {T0: errors.COORDINATOR_NOT_AVAILABLE}
    assert stage.groups.find(G) is None and not waits.done()
    stage.log.refuses = None
    await stage.log.move()
    assert await waits == {T0: 0}


@virtual.story
async def test_a_group_that_is_being_made_is_not_forgotten(stage: Stage) -> None:
    """While its first commit waits, the group is empty: a join is refused and offsets expire, but the group stays."""
    await stage.begin()
    asked, one = stage.commit(t0=5), Consumer(stage.groups, G)
    one.id = "nobody"
    await virtual.settle()
    assert (await one.join()).error == errors.UNKNOWN_MEMBER_ID
    assert await stage.groups.expire(virtual.EPOCH_MS) == 0
    await stage.log.move()
    assert await asked == {T0: 0} and stage.stands() == {"t0": 5}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errors.UNKNOWN_TOPIC_OR_PARTITION, errors.COORDINATOR_NOT_AVAILABLE),
        (errors.NOT_LEADER_OR_FOLLOWER, errors.NOT_COORDINATOR),
        (errors.FENCED_LEADER_EPOCH, errors.NOT_COORDINATOR),
        (errors.KAFKA_STORAGE_ERROR, errors.NOT_COORDINATOR),
        (errors.MESSAGE_TOO_LARGE, errors.INVALID_COMMIT_OFFSET_SIZE),
        (errors.RECORD_LIST_TOO_LARGE, errors.INVALID_COMMIT_OFFSET_SIZE),
        (errors.INVALID_RECORD, errors.INVALID_RECORD),
    ],
)
def test_what_a_log_refuses_is_told_in_a_coordinators_words(stage: Stage, code: int, told: int) -> None:
    async def story() -> None:
        await stage.begin()
        stage.log.refuses = code
        assert await stage.commit(t0=5) == {T0: told}

    virtual.run(story())


@virtual.story
async def test_a_commit_with_too_few_replicas_counts_all_the_same(stage: Stage) -> None:
    """The ISR shrank after the append, so the client has to retry, and the log has its offset."""
    await stage.begin()
    stage.log.in_sync = False
    asked = stage.commit(t0=5)
    await virtual.settle()
    await stage.log.move()
    assert await asked == {T0: errors.COORDINATOR_NOT_AVAILABLE} and stage.stands() == {"t0": 5}


@virtual.story
async def test_a_log_that_another_broker_leads_has_nobody_wait(stage: Stage) -> None:
    """Waiting commits and joins, and new requests, get NOT_COORDINATOR before the coordinator resigns the partition."""
    await stage.begin()
    first, second = Consumer(stage.groups, H), Consumer(stage.groups, H)
    await first.stable(stage.log)
    asked, joins = stage.commit(t0=5), stage.ask(second.join())
    await virtual.settle()
    await stage.log.move(-1)
    assert await asked == {T0: errors.NOT_COORDINATOR} and (await joins).error == errors.NOT_COORDINATOR
    with pytest.raises(KafkaError) as refused:
        stage.groups.find(G)
    assert refused.value.code == errors.NOT_COORDINATOR
    stage.log.high_watermark = 0
    stage.log.become_leader(2, 2)
    stage.groups.lead(HOME, 2, stage.log)
    await stage.log.move()
    await stage.groups.loaded()
    assert stage.stands() == {"t0": 5}


# -- generations ------------------------------------------------------------------------------------------------------


@virtual.story
async def test_a_generation_is_handed_out_when_it_is_committed(stage: Stage) -> None:
    """Until the generation is committed, its members send heartbeats and wait; the partition's other group goes on."""
    await stage.begin()
    one, other = Consumer(stage.groups, G), Consumer(stage.groups, H)
    await other.stable(stage.log)
    assert (await one.join()).error == 0
    synced = stage.ask(one.sync())
    await asyncio.sleep(1)
    assert not synced.done() and stage.state() is State.COMPLETING and one.heartbeat() == 0
    assert stage.state(H) is State.STABLE and other.heartbeat() == 0
    with pytest.raises(KafkaError) as refused:
        await one.commit({T0: at(1)})
    assert refused.value.code == errors.REBALANCE_IN_PROGRESS
    third = Consumer(stage.groups, H)
    joins = [stage.ask(third.join())]
    await virtual.settle()
    joins.append(stage.ask(other.join()))
    assert [(await join).error for join in joins] == [0, 0]
    await stage.log.move()
    assert (await synced).assignment == one.id.encode() and stage.state() is State.STABLE


@virtual.story
async def test_a_generation_that_comes_too_late_is_followed_by_another(stage: Stage) -> None:
    """The members have to join again; both generations are in the log, and the later one counts."""
    await stage.begin("offsets.commit.timeout.ms=3000")
    one = Consumer(stage.groups, G)
    assert (await one.join()).error == 0
    assert (await one.sync()).error == errors.REBALANCE_IN_PROGRESS
    assert stage.state() is State.PREPARING
    assert (await one.join()).error == 0 and one.generation == 2
    synced = stage.ask(one.sync())
    await virtual.settle()
    await stage.log.move(1)
    assert not synced.done() and stage.state() is State.COMPLETING
    await stage.log.move()
    assert (await synced).error == 0 and stage.state() is State.STABLE


@virtual.story
async def test_a_member_that_falls_silent_while_its_generation_waits(stage: Stage) -> None:
    """The silent member expires, the others join again, and the late commitment of the old generation has no effect."""
    await stage.begin("offsets.commit.timeout.ms=60000")
    one, two = Consumer(stage.groups, G), Consumer(stage.groups, G)
    await one.stable(stage.log)
    joins = [stage.ask(two.join())]
    await virtual.settle()
    joins.append(stage.ask(one.join()))
    assert [(await join).error for join in joins] == [0, 0]
    synced = stage.ask(one.sync())
    await asyncio.sleep(SESSION_MS / 1000 + 1)
    assert (await synced).error == errors.REBALANCE_IN_PROGRESS and stage.state() is State.PREPARING
    assert (await one.join()).generation == 3
    await stage.log.move()
    assert stage.state() is State.COMPLETING
    assert (await after(stage.log, one.sync())).assignment == one.id.encode()


@virtual.story
async def test_a_generation_that_is_too_large_is_told_as_kafka_tells_it(stage: Stage) -> None:
    await stage.begin()
    one = Consumer(stage.groups, G)
    assert (await one.join()).error == 0
    stage.log.refuses = errors.MESSAGE_TOO_LARGE
    assert (await one.sync()).error == errors.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("fate", ["committed", "too late", "refused"])
def test_a_static_member_is_back_when_the_log_says_so(stage: Stage, fate: str) -> None:
    """A late static member gets an error, but keeps its place, which is in the log; a refused one loses it."""

    async def story() -> None:
        await stage.begin("offsets.commit.timeout.ms=3000")
        old, new = (Consumer(stage.groups, G, instance="i") for _ in range(2))
        await old.stable(stage.log)
        stage.log.refuses = errors.NOT_ENOUGH_REPLICAS if fate == "refused" else None
        joins = stage.ask(new.join())
        await virtual.settle()
        if fate == "committed":
            assert not joins.done()
            await stage.log.move()
        code = {"committed": 0, "too late": errors.REBALANCE_IN_PROGRESS, "refused": errors.COORDINATOR_NOT_AVAILABLE}
        assert (await joins).error == code[fate]
        assert old.heartbeat() == (errors.NONE if fate == "refused" else errors.FENCED_INSTANCE_ID)
        await stage.log.move()
        stage.log.refuses = None

    virtual.run(story())


# -- ends -------------------------------------------------------------------------------------------------------------


@virtual.story
async def test_a_group_ends_with_what_is_on_its_way_to_it(stage: Stage) -> None:
    """A deleted group is visible, and cannot be joined, until the waiting commit and its end are committed."""
    await stage.begin()
    assert await after(stage.log, stage.groups.offsets.commit(G, "", None, -1, {T0: at(5)})) == {T0: 0}
    late = stage.commit(t1=6)
    await virtual.settle()
    deleted = stage.ask(stage.groups.offsets.delete(G))
    await virtual.settle()
    assert (await Consumer(stage.groups, G).join()).error == errors.COORDINATOR_NOT_AVAILABLE
    again, next_ = stage.ask(stage.groups.offsets.delete(G)), stage.commit(t0=1)
    assert await after(stage.log, stage.groups.offsets.forget(H, [T0])) == 0
    assert not (again.done() and next_.done())
    assert await late == {T1: 0} and await deleted == 0
    assert await again == errors.GROUP_ID_NOT_FOUND
    await virtual.settle()
    assert stage.stands() == {}
    stage.check()
    await stage.log.move()
    assert await next_ == {T0: 0} and stage.stands() == {"t0": 1}


@virtual.story
async def test_a_group_whose_end_is_refused_is_a_group_again(stage: Stage) -> None:
    await stage.begin()
    assert await after(stage.log, stage.groups.offsets.commit(G, "", None, -1, {T0: at(5)})) == {T0: 0}
    stage.log.appending.clear()
    deleted, waits = stage.ask(stage.groups.offsets.delete(G)), None
    await virtual.settle()
    waits = stage.commit(t0=6)
    await virtual.settle()
    stage.log.refuses = errors.NOT_ENOUGH_REPLICAS
    stage.log.appending.set()
    assert await deleted == errors.COORDINATOR_NOT_AVAILABLE
    stage.log.refuses = None
    await stage.log.move()
    assert stage.state() is State.EMPTY and await after(stage.log, asyncio.wait_for(waits, 1)) == {T0: 0}
    assert stage.stands() == {"t0": 6}


@virtual.story
async def test_an_end_that_comes_too_late_is_the_end_all_the_same(stage: Stage) -> None:
    """The delete, and a commit meanwhile, get COORDINATOR_NOT_AVAILABLE after offsets.commit.timeout.ms."""
    await stage.begin("offsets.commit.timeout.ms=3000")
    assert await after(stage.log, stage.groups.offsets.commit(G, "", None, -1, {T0: at(5)})) == {T0: 0}
    deleted, commit = stage.ask(stage.groups.offsets.delete(G)), stage.commit(t0=6)
    assert await deleted == errors.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError) as refused:
        await commit
    assert refused.value.code == errors.COORDINATOR_NOT_AVAILABLE and stage.stands() == {"t0": 5}
    await stage.log.move()
    assert stage.groups.find(G) is None


@virtual.story
async def test_offsets_that_are_forgotten_take_along_what_is_on_its_way(stage: Stage) -> None:
    """OffsetDelete after a waiting commit: both are in the log, in that order."""
    await stage.begin()
    commit = stage.commit(t0=5, t1=6)
    await virtual.settle()
    forgotten = stage.ask(stage.groups.offsets.forget(G, [T0]))
    await virtual.settle()
    await stage.log.move(2)
    assert await commit == {T0: 0, T1: 0} and stage.stands() == {"t0": 5, "t1": 6} and not forgotten.done()
    await stage.log.move()
    assert await forgotten == 0 and stage.stands() == {"t1": 6}


@virtual.story
async def test_a_topic_that_is_deleted_takes_along_what_is_on_its_way(stage: Stage) -> None:
    await stage.begin()
    commit = stage.commit(t0=5)
    await virtual.settle()
    forgotten = stage.ask(stage.groups.forget_topic("t"))
    await virtual.settle()
    await stage.log.move()
    assert await commit == {T0: 0}
    await forgotten
    assert stage.groups.find(G) is None


@virtual.story
async def test_what_is_committed_once_a_topic_was_deleted_is_of_the_next_one(stage: Stage) -> None:
    """The topic's name is used again while its offsets are still deleted, a share of the groups at a time."""
    await stage.begin()
    names = (name for n in range(9999) if partition_of(name := f"{G}-{n}", PARTITIONS) == HOME)
    groups = list(itertools.islice(names, SWEEP_GROUPS + 2))
    for group in groups:
        assert await after(stage.log, stage.groups.offsets.commit(group, "", None, -1, {T0: at(5)})) == {T0: 0}
    forgotten = stage.ask(stage.groups.forget_topic("t"))
    await virtual.settle()
    commit = stage.ask(stage.groups.offsets.commit(groups[-1], "", None, -1, {T0: at(7)}))
    while not forgotten.done():
        await stage.log.move()
        await virtual.settle()
    assert await commit == {T0: 0}
    found = {group: stage.groups.find(group) for group in groups}
    assert {group: entry.offsets[T0].offset for group, entry in found.items() if entry is not None} == {groups[-1]: 7}


@virtual.story
async def test_an_offset_does_not_expire_while_a_newer_one_is_on_its_way(stage: Stage) -> None:
    """The committed offset is old, but its tombstone would come after the waiting commit, and hide it."""
    await stage.begin()
    assert await after(stage.log, stage.groups.offsets.commit(G, "", None, -1, {T0: at(5), T1: at(6)})) == {
        T0: 0,
        T1: 0,
    }
    newer = stage.ask(stage.groups.offsets.commit(G, "", None, -1, {T0: at(7, virtual.EPOCH_MS + MINUTE_MS)}))
    await virtual.settle()
    expired = stage.ask(stage.groups.expire(virtual.EPOCH_MS + MINUTE_MS))
    await virtual.settle()
    assert stage.stands() == {"t0": 5, "t1": 6}
    await stage.log.move()
    assert await newer == {T0: 0} and await expired == 1 and stage.stands() == {"t0": 7}


@virtual.story
async def test_what_expires_is_shown_until_that_is_committed(stage: Stage) -> None:
    """A tombstone is written once, however often expiry runs; then the group, which is empty, ends too."""
    await stage.begin("offsets.commit.timeout.ms=3000")
    one = Consumer(stage.groups, G)
    await one.stable(stage.log)
    assert await after(stage.log, one.commit({T0: at(5)})) == {T0: 0}
    assert one.leave() == 0
    await virtual.settle()
    await stage.log.move()
    end, late = stage.log.log_end_offset, virtual.EPOCH_MS + 2 * MINUTE_MS
    assert await stage.groups.expire(late) == 0
    assert await stage.groups.expire(late) == 0
    assert stage.log.log_end_offset == end + 1 and stage.stands() == {"t0": 5}
    await stage.log.move()
    assert stage.stands() == {} and stage.state() is State.EMPTY
    stage.check()
    ending = stage.ask(stage.groups.expire(late))
    await virtual.settle()
    assert stage.state() is State.DEAD
    await stage.log.move()
    await ending
    assert stage.groups.find(G) is None


@virtual.story
async def test_groups_do_not_notice_another_epoch_of_the_same_leader(stage: Stage) -> None:
    """After a follower's death there is a new leader epoch, which the log gets first. Waiting requests wait on, and a
    record that the log refused in the old epoch is stored in the new one."""
    await stage.begin()
    waits = stage.commit(t0=5)
    await virtual.settle()
    stage.log.become_leader(1, 1)
    refused = stage.commit(t1=7)
    await virtual.settle()
    assert not waits.done() and not refused.done()
    stage.groups.lead(HOME, 1, stage.log, led_on=True)
    await virtual.settle()
    await stage.log.move()
    assert (await waits, await refused) == ({T0: errors.NONE}, {T1: errors.NONE})
    assert stage.stands() == {"t0": 5, "t1": 7}
    stage.check()


@virtual.story
async def test_a_leader_that_was_none_for_a_while_begins_anew(stage: Stage) -> None:
    """Waiting requests get NOT_COORDINATOR, as their records may be gone."""
    await stage.begin()
    waits = stage.commit(t0=5)
    await virtual.settle()
    stage.log.become_leader(2, 1)
    refused = stage.commit(t1=7)
    await virtual.settle()
    stage.groups.lead(HOME, 2, stage.log)
    assert (await waits, await refused) == ({T0: errors.NOT_COORDINATOR}, {T1: errors.NOT_COORDINATOR})
