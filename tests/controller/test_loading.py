"""Loading at a start: what is read from the store, the partitions that are led again, and the records of them."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.store import NoNode, StoreDamaged
from pybroker.decisions.image import NO_LEADER, PartitionState
from pybroker.decisions.topics import Topic
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker import loading
from pybroker.metadata.lone_broker.directory_assignments import DirectoryAssignments
from pybroker.metadata.lone_broker.topic_nodes import creation
from pybroker.metadata.planning import NewTopic
from pybroker.model import TopicPartition
from tests.controller.life import Left
from tests.controller.stage import Stage

ID = b"i" * 16


async def test_what_was_made_is_loaded_as_it_was(stage: Stage) -> None:
    for name in ("b", "a"):
        await stage.topics.create(NewTopic(name, 3, 2, config={"retention.ms": "5"}))
    await stage.topics.grow("a", 5, None)
    loaded = await loading.load(stage.session)
    known = [replace(stage.context.topics[name], config={"retention.ms": "5"}) for name in ("a", "b")]
    assert loaded == (known, [])


async def test_what_was_cut_short_is_told_apart(stage: Stage) -> None:
    """The start finds a topic with a deletion request, and one whose states were not written."""
    for name in ("doomed", "small"):
        await stage.topics.create(NewTopic(name, 2))
    await stage.control.resign()
    await stage.session.create(nodes.deletion("doomed"))
    await stage.session.create(nodes.topic_config("begun"), nodes.dump_config({}))
    await stage.session.create(nodes.topic("begun"), nodes.dump_assignment(ID, [(1,), (1,)]))
    loaded = await loading.load(stage.session)
    assert [topic.name for topic in loaded.deleted] == ["doomed"]
    assert {topic.name: [state.leader_epoch for state in topic.partitions] for topic in loaded.topics} == {
        "small": [0, 0], "begun": [-1, -1]
    }  # fmt: skip


async def test_a_node_that_nobody_wrote_is_damage(stage: Stage) -> None:
    await stage.topics.create(NewTopic("t"))
    await stage.session.set(nodes.topic("t"), b"{}")
    with pytest.raises(StoreDamaged):
        await loading.load(stage.session)


async def test_nodes_that_are_missing_are_told_of_once(tmp_path: Path) -> None:
    """One error of several missing nodes is raised, and no "exception was never retrieved" follows for the others."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context)))
    store = EmbeddedStore(str(tmp_path / "store"))
    await store.open()
    session = await store.session(10_000)
    await loading.prepare(session)
    await session.multi(creation(Topic("t", ID, (PartitionState((1,), 1, 0, (1,), 1, 0),) * 3)))
    await session.delete(nodes.topic_config("t"))
    with pytest.raises(NoNode):
        await loading.load(session)
    await store.close()  # its thread holds the last result until then
    gc.collect()
    assert told == []


async def test_partitions_are_led_again_under_a_new_epoch(stage: Stage) -> None:
    """The new epoch is above the store's and the log's; other brokers' partitions stay. A repetition is no error."""
    await stage.topics.create(NewTopic("t", assignment={0: [1], 1: [1], 2: [2]}))
    before = stage.context.topics["t"].partitions
    beside = {TopicPartition("t", 1): Left(leader_epoch=9)}
    for epoch in (1, 2):
        loaded = await loading.load(stage.session)
        [led] = await loading.lead_again(stage.session, stage.context.fence, loaded.topics, beside, 1)
        assert [state.leader_epoch for state in led.partitions] == [epoch, 9 + epoch, 0]
        assert [state.partition_epoch for state in led.partitions] == [epoch, epoch, 0]
        assert (await loading.load(stage.session)).topics == [led], "the store has what was returned"
    assert [state.leader_epoch for state in before] == [0, 0, 0]


async def test_a_leader_that_was_lost_is_back(stage: Stage) -> None:
    """A partition without a leader and a known ISR is led by the broker that holds it."""
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


async def test_log_dirs_are_known_by_their_ids(stage: Stage) -> None:
    assert await loading.known_log_dirs(stage.session, 1) == {}
    for paths in ({"a": "/a"}, {"a": "/moved", "b": "/b"}):
        await loading.record_log_dirs(stage.session, stage.context.fence, 1, paths)
        assert await loading.known_log_dirs(stage.session, 1) == paths


async def test_where_partitions_lie_is_recorded_where_it_changed(stage: Stage) -> None:
    """All changed partitions of a topic are in one write, which keeps the node's other content."""
    for name in ("same", "moved"):
        await stage.topics.create(NewTopic(name, 2))
    ids = {name: stage.context.topics[name].id for name in ("same", "moved")}
    assert await loading.held(stage.session) == {}
    places = DirectoryAssignments(lambda: stage.session, {(ids["same"], 0): "a", (ids["same"], 1): "b"}, {})
    await places.record([(name, ids[name], index, "ab"[index]) for name in ids for index in range(2)])
    assert await loading.held(stage.session) == {"a": 1, "b": 1}
    versions = [(await stage.session.get(nodes.topic(name)))[1].version for name in ("same", "moved")]
    assert versions == [0, 1] and places.directory(ids["moved"], 1) == "b"
    loaded = {topic.name: topic.directories for topic in (await loading.load(stage.session)).topics}
    assert loaded == {"same": {}, "moved": {0: "a", 1: "b"}}
