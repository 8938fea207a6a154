"""Each write of a controller happens once and only in its epoch, with a lost connection at any operation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import NamedTuple

import pytest

from pybroker import errors
from pybroker.coordination.commit import until_answered
from pybroker.coordination.memory import Fate, MemorySession
from pybroker.coordination.store import ConnectionLoss, Op, SessionState, Set, StoreError
from pybroker.decisions.config_changes import ConfigChange
from pybroker.decisions.image import LiveBroker
from pybroker.errors import KafkaError
from pybroker.metadata import config_admin, controllership, identity, nodes, producer_ids, topic_admin
from pybroker.metadata.controllership import elect
from pybroker.metadata.lone_broker import directory_assignments, loading, registration
from pybroker.metadata.lone_broker.adoption import Adoption
from pybroker.metadata.lone_broker.directory_assignments import DirectoryAssignments
from pybroker.metadata.planning import NewTopic
from pybroker.metadata.producer_ids import BLOCK, ProducerIds
from pybroker.model import TopicPartition
from tests.controller.life import Left
from tests.controller.stage import TIMEOUT_MS, Stage, live_broker
from tests.rows import with_each

NOW_MS = 1_700_000_000_000
LOST = (Fate.LOST_BEFORE, Fate.LOST_AFTER)
RETENTION = [ConfigChange("retention.ms", 0, "1000")]
LOG_RETENTION = [ConfigChange("log.retention.ms", 0, "5000")]
FOUND = {TopicPartition("topic", 0): Left(), TopicPartition("left-over", 1): Left()}
Act = Callable[[Stage], Awaitable[object]]


class Story(NamedTuple):
    """A write of the controller and its preparation; both get the stage."""

    act: Act
    before: Act | None = None
    alone: bool = True
    """True if nothing of the control plane runs beside the write."""


async def a_topic(stage: Stage) -> None:
    await stage.topics.create(NewTopic("topic", 2, 2))


async def delete(stage: Stage) -> None:
    topic_id = stage.context.topics["topic"].id
    await stage.topics.delete("topic", topic_id)
    await stage.topics.gone("topic", topic_id)


async def alter_topic(stage: Stage) -> None:
    await stage.configs.alter_topic("topic", RETENTION, replace=False, validate_only=False)


async def alter_brokers(stage: Stage) -> None:
    await stage.configs.alter_broker("", LOG_RETENTION, replace=False, validate_only=False)


async def alter_brokers_again(stage: Stage) -> None:
    changes = [ConfigChange("log.retention.ms", 0, "7000")]
    await stage.configs.alter_broker("", changes, replace=False, validate_only=False)


async def record_dirs(stage: Stage) -> None:
    await loading.record_log_dirs(stage.session, stage.context.fence, 1, {"dir-0": "/data"})


async def record_other_dirs(stage: Stage) -> None:
    await loading.record_log_dirs(stage.session, stage.context.fence, 1, {"dir-0": "/data", "dir-1": "/more"})


async def lead_again(stage: Stage) -> None:
    await loading.lead_again(stage.session, stage.context.fence, [stage.context.topics["topic"]], FOUND, 1)


async def record_places(stage: Stage) -> None:
    topic_id = stage.context.topics["topic"].id
    places = DirectoryAssignments(lambda: stage.session, {}, {})
    await places.record([("topic", topic_id, 0, "dir-7"), ("topic", topic_id, 1, "dir-8")])
    assert places.directory(topic_id, 1) == "dir-8"


def adoption(stage: Stage) -> Adoption:
    return Adoption(stage.session, stage.context.fence, 1, stage.random)


async def adopt(stage: Stage) -> None:
    await adoption(stage).all(FOUND, loading.LoadedTopics([], []), dict, lost=True)


async def adopt_strays(stage: Stage) -> None:
    topic = stage.context.topics["topic"]
    more = {TopicPartition("topic", 3): Left(topic.id), TopicPartition("stray", 0): Left(b"s" * 16)}
    await adoption(stage).strays(more, loading.LoadedTopics([topic], []))


async def a_topic_that_was(stage: Stage) -> None:
    await stage.session.create(nodes.deleted(b"t" * 16))


async def forget(stage: Stage) -> None:
    await adoption(stage).forget_deleted({})


async def draw(stage: Stage) -> None:
    assert await stage.ids.draw() == 0


def here(rack: str) -> LiveBroker:
    return live_broker(7)._replace(rack=rack)


async def register(stage: Stage) -> None:
    epoch = await registration.register(stage.session, here("rack"), lambda: NOW_MS)
    _, stat = await until_answered(lambda: stage.session.get(nodes.broker(7)))
    assert epoch == stat.czxid


async def renew(stage: Stage) -> None:
    await registration.renew(stage.session, here("another-rack"), lambda: NOW_MS)


async def nobody_controls(stage: Stage) -> None:
    """End the controller's session and open another one."""
    await stage.rest()
    await stage.session.close()
    stage.session = await stage.store.session(TIMEOUT_MS)


async def take_control(stage: Stage) -> None:
    fence = await elect(stage.session, 2, NOW_MS)
    assert fence is not None
    await controllership.write(stage.session, fence, [Set(nodes.SEQUENCE_OF_IDS, b"fenced")])


async def record_cluster(stage: Stage) -> None:
    await identity.record_cluster_id(stage.session, "the-cluster")


STORIES = {
    "create": Story(a_topic, alone=False),
    "grow": Story(lambda stage: stage.topics.grow("topic", 4, None), a_topic, alone=False),
    "delete": Story(delete, a_topic, alone=False),
    "alter-topic": Story(alter_topic, a_topic, alone=False),
    "alter-brokers": Story(alter_brokers, alone=False),
    "alter-brokers-again": Story(alter_brokers_again, alter_brokers, alone=False),
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
"""Every write that is a compare-and-set."""


class Life(NamedTuple):
    """The end of a story: the tree without times and numbers, and the number of operations."""

    tree: list[tuple[object, ...]]
    operations: int


async def tree(stage: Stage, path: str = "/") -> list[tuple[object, ...]]:
    data, stat = await until_answered(lambda: stage.session.get(path))
    known = re.sub(rb'"timestamp":"\d+"', b"", data)
    mine = stat.ephemeral_owner == stage.session.id
    found: list[tuple[object, ...]] = [(path, known, stat.version, stat.cversion, mine)]
    for name in (await until_answered(lambda: stage.session.children(path)))[0]:
        found += await tree(stage, f"{path.rstrip('/')}/{name}")
    return found


def memory(stage: Stage) -> MemorySession:
    assert isinstance(stage.session, MemorySession)
    return stage.session


async def live(story: Story, fates: dict[int, Fate]) -> Life:
    """Run a story; the operations of these numbers lose their connection, which is back at once."""
    stage = await Stage(seed=5).begin()
    if story.before is not None:
        await story.before(stage)
    if story.alone:
        await stage.rest()
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
    """Any operation may lose its connection, before its effect or after, and the next one too."""
    expected = await live(STORIES[story], {})
    for number in range(expected.operations):
        for fate in LOST:
            assert (await live(STORIES[story], {number: fate})).tree == expected.tree, (number, fate)
            for next_fate in LOST:
                both = {number: fate, number + 1: next_fate}
                assert (await live(STORIES[story], both)).tree == expected.tree, both


async def blindly(session: MemorySession, ops: list[Op]) -> None:
    await until_answered(lambda: session.multi(ops))


@pytest.mark.parametrize("story", [name for name in STORIES if name != "delete"])  # an existing request is as good
async def test_a_writer_that_sends_again_blindly_does_not_pass(story: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of these stories some operation exposes a writer that repeats writes blindly."""
    expected = await live(STORIES[story], {})
    writers = (config_admin, directory_assignments, controllership, identity, producer_ids, registration, topic_admin)
    for module in writers:
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
    """Start an action whose first write loses its connection for good; return its future result."""
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
    """Another broker is controller before the write is read back, so it is refused with any fate."""
    stage = await Stage(seed=5).begin()
    await stage.rest()
    old, fence = memory(stage), stage.context.fence
    writing = await lost_at(old, fate, controllership.write(old, fence, [Set(nodes.SEQUENCE_OF_IDS, b"old")]))
    stage.session = await stage.store.session(TIMEOUT_MS)
    if session_ends:
        old.expire()
    else:
        await stage.session.delete(nodes.CONTROLLER)  # as an operator does by hand
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
        await controllership.write(old, fence, [Set(nodes.SEQUENCE_OF_IDS, b"again")])
    assert told.value.code == errors.NOT_CONTROLLER
    await controllership.write(stage.session, fresh, [Set(nodes.SEQUENCE_OF_IDS, b"new")])
    await stage.end()


@pytest.mark.parametrize("fate", LOST)
async def test_who_lost_its_session_with_its_claim_is_not_elected(fate: Fate) -> None:
    """The claim may have been stored; it ended with the session, and another broker has the next epoch."""
    stage = await Stage(seed=5).begin()
    await stage.rest()
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
    """The first broker's session is alive, and finds the other broker's node."""
    stage = await Stage(seed=5).begin()
    await stage.rest()
    await stage.session.close()
    one, other = await stage.store.session(TIMEOUT_MS), await stage.store.session(TIMEOUT_MS)
    one.fate = iter([Fate.ANSWERED, Fate.LOST_BEFORE, *[Fate.ANSWERED] * 9]).__next__
    away = asyncio.Event()
    one.listen(lambda now: away.set())
    standing = asyncio.ensure_future(elect(one, 1, NOW_MS))
    await away.wait()
    assert await elect(other, 1, NOW_MS) is not None, "the same bytes in another session's node"
    one.reconnect()
    assert await standing is None
    await stage.end()


# -- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_no_two_brokers_draw_the_same_producer_id_however_often_they_are_cut_off(seed: int) -> None:
    """Concurrent writes may lose a block of ids; no block is used twice."""
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
    reads = 2  # for the log dirs and for the topics
    session.fate = iter([*[Fate.ANSWERED] * reads, fate, *[Fate.ANSWERED] * 9]).__next__
    who = await identity.settle(session, -1, None, None, None, stage.random)
    assert who.broker_id == identity.GENERATED_ABOVE + (2 if fate is Fate.LOST_AFTER else 1)
    await stage.end()


async def test_the_paths_are_prepared_wherever_the_connection_breaks() -> None:
    stage = await Stage(seed=5).begin()
    await nobody_controls(stage)
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
    """The nodes that `prepare` creates and that exist, parents first."""
    return [path for path in nodes.PERSISTENT if await stage.session.exists(path)]
