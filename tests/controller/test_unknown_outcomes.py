"""All that a controller writes, with its connection lost at each operation: written once, and behind the fence."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import NamedTuple

import pytest

from pybroker import errors
from pybroker.cluster.config_changes import Change
from pybroker.controller import election, identity, loading, nodes, producer_ids
from pybroker.controller import registration as registration_module
from pybroker.controller.adoption import Adoption
from pybroker.controller.channel import Channel
from pybroker.controller.election import elect
from pybroker.controller.planning import NewTopic
from pybroker.controller.producer_ids import BLOCK, ProducerIds
from pybroker.controller.registration import Registration
from pybroker.coordination.commit import until_answered
from pybroker.coordination.memory import Fate, MemorySession
from pybroker.coordination.store import ConnectionLoss, Op, SessionState, Set, StoreError
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.controller.life import Left
from tests.controller.stage import TIMEOUT_MS, Stage
from tests.rows import with_each

NOW_MS = 1_700_000_000_000
LOST = (Fate.LOST_BEFORE, Fate.LOST_AFTER)
RETENTION = [Change("retention.ms", 0, "1000")]
LOG_RETENTION = [Change("log.retention.ms", 0, "5000")]
FOUND = {TopicPartition("topic", 0): Left(), TopicPartition("left-over", 1): Left()}
Act = Callable[[Stage], Awaitable[object]]


class Story(NamedTuple):
    """A write of the controller, after what comes before it; both are given the stage."""

    act: Act
    before: Act | None = None


async def a_topic(stage: Stage) -> None:
    await stage.topics.create(NewTopic("topic", 2, 2))


async def refused(stage: Stage) -> None:
    """What was put on record is taken back."""
    stage.holders.refuses.add("bad")
    with pytest.raises(KafkaError, match="bad cannot be made"):
        await stage.topics.create(NewTopic("bad", 2, 2))


async def delete(stage: Stage) -> None:
    await stage.topics.delete("topic", stage.context.topics["topic"].id)


async def alter_topic(stage: Stage) -> None:
    await stage.configs.alter_topic("topic", RETENTION, replace=False, validate_only=False)


async def alter_brokers(stage: Stage) -> None:
    await stage.configs.alter_broker("", LOG_RETENTION, replace=False, validate_only=False)


async def alter_brokers_again(stage: Stage) -> None:
    changes = [Change("log.retention.ms", 0, "7000")]
    await stage.configs.alter_broker("", changes, replace=False, validate_only=False)


async def record_dirs(stage: Stage) -> None:
    await loading.record_log_dirs(stage.session, stage.context.fence, 1, {"dir-0": "/data"})


async def record_other_dirs(stage: Stage) -> None:
    await loading.record_log_dirs(stage.session, stage.context.fence, 1, {"dir-0": "/data", "dir-1": "/more"})


async def lead_again(stage: Stage) -> None:
    await loading.lead_again(stage.session, stage.context.fence, [stage.context.topics["topic"]], FOUND, 1)


async def record_places(stage: Stage) -> None:
    stage.holders.directories = lambda topic: {0: "dir-7", 1: "dir-8"}  # type: ignore[method-assign]
    await loading.record_directories(stage.session, stage.context.fence, [stage.context.topics["topic"]], stage.holders)


def adoption(stage: Stage) -> Adoption:
    return Adoption(stage.session, stage.context.fence, 1, stage.random)


async def adopt(stage: Stage) -> None:
    await adoption(stage).all(FOUND, loading.Loaded([], [], []), dict, lost=True)


async def adopt_strays(stage: Stage) -> None:
    topic = stage.context.topics["topic"]
    more = {TopicPartition("topic", 3): Left(topic.id), TopicPartition("stray", 0): Left(b"s" * 16)}
    await adoption(stage).strays(more, loading.Loaded([topic], [], []))


async def a_topic_that_was(stage: Stage) -> None:
    await a_topic(stage)
    await delete(stage)


async def forget(stage: Stage) -> None:
    await adoption(stage).forget_deleted({})


async def draw(stage: Stage) -> None:
    assert await stage.ids.draw() == 0


def registration(stage: Stage, rack: str = "rack") -> Registration:
    here = stage.brokers[1]._replace(rack=rack)
    channel = Channel(stage.context, stage.metadata, stage.topic_configs)
    return Registration(stage.session, stage.context, channel, lambda: here, lambda: NOW_MS)


async def register(stage: Stage) -> None:
    epoch = await registration(stage).register()
    _, stat = await until_answered(lambda: stage.session.get(nodes.broker(1)))
    assert epoch == stat.czxid


async def renew(stage: Stage) -> None:
    await registration(stage, "another-rack").renew()


async def nobody_controls(stage: Stage) -> None:
    """The controller's session ends, and here is another one."""
    await stage.session.close()
    stage.session = await stage.store.session(TIMEOUT_MS)


async def take_control(stage: Stage) -> None:
    fence = await elect(stage.session, 2, NOW_MS)
    assert fence is not None
    await election.write(stage.session, fence, [Set(nodes.SEQUENCE_OF_IDS, b"fenced")])


async def record_cluster(stage: Stage) -> None:
    await identity.record_cluster_id(stage.session, "the-cluster")


STORIES = {
    "create": Story(a_topic),
    "create-refused": Story(refused),
    "grow": Story(lambda stage: stage.topics.grow("topic", 4, None), a_topic),
    "delete": Story(delete, a_topic),
    "alter-topic": Story(alter_topic, a_topic),
    "alter-brokers": Story(alter_brokers),
    "alter-brokers-again": Story(alter_brokers_again, alter_brokers),
    "record-log-dirs": Story(record_dirs),
    "record-log-dirs-again": Story(record_other_dirs, record_dirs),
    "record-directories": Story(record_places, a_topic),
    "lead-again": Story(lead_again, a_topic),
    "adopt": Story(adopt),
    "adopt-strays": Story(adopt_strays, a_topic),
    "forget-deleted": Story(forget, a_topic_that_was),
    "producer-ids": Story(draw),
    "register": Story(register),
    "renew-registration": Story(renew, register),
    "elect": Story(take_control, nobody_controls),
    "cluster-id": Story(record_cluster),
}
"""Everything that is written by compare-and-set."""


class Life(NamedTuple):
    """How a story ended: the tree, without times and numbers, and how many operations it took."""

    tree: list[tuple[object, ...]]
    operations: int


async def tree(stage: Stage, path: str = "/") -> list[tuple[object, ...]]:
    data, stat = await stage.session.get(path)
    known = re.sub(rb'"timestamp":"\d+"', b"", data)
    mine = stat.ephemeral_owner == stage.session.id
    found: list[tuple[object, ...]] = [(path, known, stat.version, stat.cversion, mine)]
    for name in (await stage.session.children(path))[0]:
        found += await tree(stage, f"{path.rstrip('/')}/{name}")
    return found


def memory(stage: Stage) -> MemorySession:
    assert isinstance(stage.session, MemorySession)
    return stage.session


async def live(story: Story, fates: dict[int, Fate]) -> Life:
    """Play a story; its operations of these numbers lose their connection, which is there again at once."""
    stage = await Stage(seed=5).begin()
    if story.before is not None:
        await story.before(stage)
    session, sent, loop = memory(stage), 0, asyncio.get_running_loop()

    def fate() -> Fate:
        nonlocal sent
        sent += 1
        return fates.get(sent - 1, Fate.ANSWERED)

    session.fate = fate
    session.listen(lambda now: loop.call_soon(session.reconnect) if now is SessionState.DISCONNECTED else None)
    await story.act(stage)
    session.fate = lambda: Fate.ANSWERED
    left = Life(await tree(stage), sent)
    await stage.end()
    return left


@with_each("story", STORIES)
async def test_each_write_is_done_once(story: str) -> None:
    """Whichever operation loses its connection, before its effect or after, and the one behind it too, if it does."""
    expected = await live(STORIES[story], {})
    for number in range(expected.operations):
        for fate in LOST:
            assert (await live(STORIES[story], {number: fate})).tree == expected.tree, (number, fate)
            for next_fate in LOST:
                both = {number: fate, number + 1: next_fate}
                assert (await live(STORIES[story], both)).tree == expected.tree, both


async def blindly(session: MemorySession, ops: list[Op]) -> None:
    await until_answered(lambda: session.multi(ops))


@pytest.mark.parametrize("story", STORIES)
async def test_a_writer_that_sends_again_blindly_does_not_pass(story: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of these stories some operation gives it away."""
    expected = await live(STORIES[story], {})
    for module in (election, identity, producer_ids, registration_module):
        monkeypatch.setattr(module, "commit", blindly)
    for number in range(expected.operations):
        try:
            if (await live(STORIES[story], {number: Fate.LOST_AFTER})).tree != expected.tree:
                return
        except (StoreError, KafkaError, AssertionError):
            return
    pytest.fail("it passed")


# -- the fence --------------------------------------------------------------------------------------------------------


async def lost_at(session: MemorySession, fate: Fate, act: Awaitable[object]) -> asyncio.Future[object]:
    """Begin something whose first write loses its connection, which stays away; what it will come to."""
    to_come = iter([fate])
    session.fate = lambda: next(to_come, Fate.ANSWERED)
    away = asyncio.Event()
    session.listen(lambda now: away.set())
    doing = asyncio.ensure_future(act)
    await away.wait()
    return doing


@pytest.mark.parametrize("fate", LOST)
@pytest.mark.parametrize("session_ends", [False, True], ids=["deposed", "expired"])
async def test_a_lost_controllership_is_no_success(fate: Fate, session_ends: bool) -> None:
    """Another broker controls by the time that the write is read back: whatever became of it, it is refused."""
    stage = await Stage(seed=5).begin()
    old, fence = memory(stage), stage.context.fence
    writing = await lost_at(old, fate, election.write(old, fence, [Set(nodes.SEQUENCE_OF_IDS, b"old")]))
    stage.session = await stage.store.session(TIMEOUT_MS)
    if session_ends:
        old.expire()
    else:
        await stage.session.delete(nodes.CONTROLLER)  # as somebody does by hand
    fresh = await elect(stage.session, 2, NOW_MS)
    assert fresh is not None
    assert fresh.epoch == fence.epoch + 1
    before = await tree(stage)
    old.reconnect()
    with pytest.raises(KafkaError) as told:
        await writing
    assert told.value.code == errors.NOT_CONTROLLER
    assert await tree(stage) == before
    written = (await stage.session.get(nodes.SEQUENCE_OF_IDS))[0]
    assert written == (b"old" if fate is Fate.LOST_AFTER else b"")
    with pytest.raises(KafkaError) as told:
        await election.write(old, fence, [Set(nodes.SEQUENCE_OF_IDS, b"again")])
    assert told.value.code == errors.NOT_CONTROLLER
    await election.write(stage.session, fresh, [Set(nodes.SEQUENCE_OF_IDS, b"new")])
    await stage.end()


@pytest.mark.parametrize("fate", LOST)
async def test_who_lost_its_session_with_its_claim_is_not_elected(fate: Fate) -> None:
    """The claim may have been in the store; it is gone with the session, and another broker has the next epoch."""
    stage = await Stage(seed=5).begin()
    await stage.session.close()
    one, other = await stage.store.session(TIMEOUT_MS), await stage.store.session(TIMEOUT_MS)
    one.fate = iter([Fate.ANSWERED, fate, *[Fate.ANSWERED] * 9]).__next__
    away = asyncio.Event()
    one.listen(lambda now: away.set())
    standing = asyncio.ensure_future(elect(one, 1, NOW_MS))
    await away.wait()
    one.expire()
    fence = await elect(other, 2, NOW_MS)
    assert fence is not None
    assert fence.epoch == stage.context.fence.epoch + (2 if fate is Fate.LOST_AFTER else 1)
    one.reconnect()
    with pytest.raises(ConnectionLoss):
        await standing
    await stage.end()


async def test_who_lost_its_claim_and_was_overtaken_is_not_elected() -> None:
    """It has its session still, and finds the other one's node."""
    stage = await Stage(seed=5).begin()
    await stage.session.close()
    one, other = await stage.store.session(TIMEOUT_MS), await stage.store.session(TIMEOUT_MS)
    one.fate = iter([Fate.ANSWERED, Fate.LOST_BEFORE, *[Fate.ANSWERED] * 9]).__next__
    away = asyncio.Event()
    one.listen(lambda now: away.set())
    standing = asyncio.ensure_future(elect(one, 1, NOW_MS))
    await away.wait()
    assert await elect(other, 1, NOW_MS) is not None, "the same node, byte for byte, of another session"
    one.reconnect()
    assert await standing is None
    await stage.end()


# -- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_no_two_brokers_draw_the_same_producer_id_however_often_they_are_cut_off(seed: int) -> None:
    """Blocks may be lost where two write at once; none is had twice."""
    stage = await Stage(seed).begin()
    loop, chance, drawn = asyncio.get_running_loop(), Random(seed), []

    async def draw(broker: int) -> None:
        session = await stage.store.session(TIMEOUT_MS)
        session.fate = lambda: chance.choice(list(Fate))
        session.listen(lambda now: loop.call_soon(session.reconnect) if now is SessionState.DISCONNECTED else None)
        ids = ProducerIds(lambda: session, broker, above=lambda: -1)
        drawn.extend([await ids.draw() for _ in range(5 * BLOCK)])

    await asyncio.gather(*(draw(broker) for broker in (1, 2, 3)))
    assert len(drawn) == len(set(drawn)) == 15 * BLOCK
    await stage.end()


@pytest.mark.parametrize("fate", LOST)
async def test_a_generated_broker_id_may_be_lost_but_is_nobody_elses(fate: Fate) -> None:
    stage = await Stage(seed=5).begin()
    session, loop = memory(stage), asyncio.get_running_loop()
    session.listen(lambda now: loop.call_soon(session.reconnect) if now is SessionState.DISCONNECTED else None)
    reads = 2  # which log dirs and which topics there are
    session.fate = iter([*[Fate.ANSWERED] * reads, fate, *[Fate.ANSWERED] * 9]).__next__
    who = await identity.settle(session, -1, None, None, None, stage.random)
    assert who.broker_id == identity.GENERATED_ABOVE + (2 if fate is Fate.LOST_AFTER else 1)
    await stage.end()


async def test_the_paths_are_prepared_wherever_the_connection_breaks() -> None:
    stage = await Stage(seed=5).begin()
    loop = asyncio.get_running_loop()
    for broken in range(len(nodes.PERSISTENT)):
        for path in reversed(await paths(stage)):
            await stage.session.delete(path)
        session = await stage.store.session(TIMEOUT_MS)
        fates = iter([*[Fate.ANSWERED] * broken, LOST[broken % 2]])
        session.fate = lambda fates=fates: next(fates, Fate.ANSWERED)  # type: ignore[misc]
        session.listen(lambda now, back=session.reconnect: loop.call_soon(back))  # type: ignore[misc]
        await loading.prepare(session)
        assert set(await paths(stage)) == set(nodes.PERSISTENT)
    await stage.end()


async def paths(stage: Stage) -> list[str]:
    """What `prepare` made that is there, parents first."""
    return [path for path in nodes.PERSISTENT if await stage.session.exists(path)]
