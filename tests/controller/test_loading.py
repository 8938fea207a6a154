"""What a start reads from the store, leads again and writes down."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from pybroker.cluster.image import NO_LEADER, PartitionState
from pybroker.cluster.topics import Topic
from pybroker.controller import loading, nodes
from pybroker.controller.planning import NewTopic
from pybroker.controller.topics import creation, topic_op
from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.store import Create, NoNode, StoreDamaged
from pybroker.model import TopicPartition
from tests.controller.life import Left
from tests.controller.stage import Stage

ID = b"i" * 16


async def test_what_was_made_is_loaded_as_it_was(stage: Stage) -> None:
    for name in ("b", "a"):
        await stage.topics.create(NewTopic(name, 3, 2, config={"retention.ms": "5"}))
    await stage.topics.grow("a", 5, None)
    loaded = await loading.load(stage.session)
    assert loaded == ([stage.context.topics["a"], stage.context.topics["b"]], [], [])


async def test_what_was_cut_short_is_told_apart(stage: Stage) -> None:
    """A wish to delete, a creation and a growth that did not come to their ends; the one that grew is as it was."""
    for name in ("doomed", "small"):
        await stage.topics.create(NewTopic(name, 2))
    small = stage.context.topics["small"]
    state = PartitionState((1,), 1, 0, (1,), 1, 0)
    begun = Topic("begun", ID, (state,))
    grown = Topic("small", small.id, (*small.partitions, state), small.config, small.directories)
    ops = [Create(nodes.partition("small", 2)), Create(nodes.state("small", 2), nodes.dump_state(state))]
    await stage.session.create(nodes.deletion("doomed"))
    await stage.session.multi([*creation(begun, made_from=0), topic_op(grown, made_from=2), *ops])
    loaded = await loading.load(stage.session)
    assert loaded.topics == [small] and [topic.name for topic in loaded.deleted] == ["doomed"]
    assert [(topic.name, first) for topic, first in loaded.unfinished] == [("begun", 0), ("small", 2)]
    for topic, first in loaded.unfinished:
        await stage.topics.undo(topic, first)
    await stage.topics.finish_deletion(loaded.deleted[0])
    assert await loading.load(stage.session) == ([small], [], [])


async def test_a_node_that_nobody_wrote_is_damage(stage: Stage) -> None:
    await stage.topics.create(NewTopic("t"))
    await stage.session.set(nodes.topic("t"), b"{}")
    with pytest.raises(StoreDamaged):
        await loading.load(stage.session)


async def test_nodes_that_are_missing_are_told_of_once(tmp_path: Path) -> None:
    """One failure is raised; the others, of what was asked for beside it, are nobody's to find in the log later."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context)))
    store = EmbeddedStore(str(tmp_path / "store"))
    await store.open()
    session = await store.session(10_000)
    await loading.prepare(session)
    await session.multi(creation(Topic("t", ID, (PartitionState((1,), 1, 0, (1,), 1, 0),) * 3)))
    for index in range(3):
        await session.delete(nodes.state("t", index))
    with pytest.raises(NoNode):
        await loading.load(session)
    await store.close()  # it holds what it has answered last
    gc.collect()
    assert told == []


async def test_partitions_are_led_again_under_a_new_epoch(stage: Stage) -> None:
    """Above what is on record and what lies beside the log; those of others are left alone. Twice is no mistake."""
    await stage.topics.create(NewTopic("t", assignment={0: [1], 1: [1], 2: [2]}))
    before = stage.context.topics["t"].partitions
    beside = {TopicPartition("t", 1): Left(leader_epoch=9)}
    for epoch in (1, 2):
        loaded = await loading.load(stage.session)
        [led] = await loading.lead_again(stage.session, stage.context.fence, loaded.topics, beside, 1)
        assert [state.leader_epoch for state in led.partitions] == [epoch, 9 + epoch, 0]
        assert [state.partition_epoch for state in led.partitions] == [epoch, epoch, 0]
        assert (await loading.load(stage.session)).topics == [led], "it is in the store as it was returned"
    assert [state.leader_epoch for state in before] == [0, 0, 0]


async def test_a_leader_that_was_lost_is_back(stage: Stage) -> None:
    """Of a partition that nobody led, whose in-sync replicas are not known, the one that holds it is the leader."""
    await stage.topics.create(NewTopic("t", assignment={0: [1]}))
    nobody = PartitionState((1,), NO_LEADER, 4, (), 1, 0)
    await stage.session.set(nodes.state("t", 0), nodes.dump_state(nobody))
    loaded = await loading.load(stage.session)
    [led] = await loading.lead_again(stage.session, stage.context.fence, loaded.topics, {}, 1)
    assert led.partitions[0] == PartitionState((1,), 1, 5, (1,), stage.context.fence.epoch, 2)


async def test_more_partitions_than_one_write_takes(stage: Stage) -> None:
    await stage.topics.create(NewTopic("t", loading.OPS_PER_WRITE + 1, 1, {}))
    loaded = await loading.load(stage.session)
    [led] = await loading.lead_again(stage.session, stage.context.fence, loaded.topics, {}, 1)
    mine = [state for state in led.partitions if state.replicas == (1,)]
    assert {state.leader_epoch for state in mine} == {1} and (await loading.load(stage.session)).topics == [led]


async def test_where_partitions_lie_is_recorded_where_it_changed(stage: Stage) -> None:
    for name in ("same", "moved"):
        await stage.topics.create(NewTopic(name, 2))
    loaded = await loading.load(stage.session)
    assert await loading.held(stage.session) == {"dir-0": 2, "dir-1": 2}
    moved, same = loaded.topics
    moved = Topic(moved.name, moved.id, moved.partitions, moved.config, {0: "elsewhere"})
    version = (await stage.session.get(nodes.topic("same")))[1].version
    placed = await loading.record_directories(stage.session, stage.context.fence, [moved, same], stage.holders)
    assert placed == loaded.topics == (await loading.load(stage.session)).topics
    assert (await stage.session.get(nodes.topic("same")))[1].version == version


async def test_log_dirs_are_known_by_their_ids(stage: Stage) -> None:
    assert await loading.known_log_dirs(stage.session, 1) == {}
    for paths in ({"a": "/a"}, {"a": "/moved", "b": "/b"}):
        await loading.record_log_dirs(stage.session, stage.context.fence, 1, paths)
        assert await loading.known_log_dirs(stage.session, 1) == paths
