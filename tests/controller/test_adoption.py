"""What lies in the log dirs and is not known to the store: taken over at a first start, or after a loss."""

from __future__ import annotations

from pybroker.cluster.topics import Topic
from pybroker.controller import loading, nodes
from pybroker.controller.adoption import Adoption
from pybroker.controller.planning import NewTopic
from pybroker.model import TopicPartition
from tests.controller.life import Left
from tests.controller.stage import Stage

ID = b"i" * 16


def adoption(stage: Stage, *, lost: bool = False) -> Adoption:
    return Adoption(stage.session, stage.context.fence, 1, stage.random, lost)


def left(topic: str, *partitions: int, **what: object) -> dict[TopicPartition, Left]:
    return {TopicPartition(topic, index): Left(**what) for index in partitions}  # type: ignore[arg-type]


async def loaded(stage: Stage) -> dict[str, Topic]:
    return {topic.name: topic for topic in (await loading.load(stage.session)).topics}


async def test_a_first_start_takes_over_what_lies_there(stage: Stage) -> None:
    """With its id, or with a new one; what is missing in between will be made; compacted logs stay so."""
    found = left("old", 0, 2) | left("known", 0, topic_id=ID) | left("compact", 0, compacted=True)
    await adoption(stage).all(found, await loading.load(stage.session))
    topics = await loaded(stage)
    assert set(topics) == {"old", "known", "compact"} and topics["known"].id == ID
    old = topics["old"]
    assert len(old.id) == 16 and [state.leader_epoch for state in old.partitions] == [3, 0, 3]
    assert all(state.replicas == state.isr == (1,) and state.leader == 1 for state in old.partitions)
    assert (old.config, topics["compact"].config) == ({}, {"cleanup.policy": "compact"})


async def test_where_settings_are_lost_nothing_is_deleted_by_defaults(stage: Stage) -> None:
    await adoption(stage, lost=True).all(left("t", 0), await loading.load(stage.session))
    assert (await loaded(stage))["t"].config == {"retention.ms": "-1", "retention.bytes": "-1"}


async def test_what_cannot_be_one_topic_is_left_alone(stage: Stage) -> None:
    """Partitions of different ids, or of a number that no partition has."""
    mixed = {TopicPartition("mixed", 0): Left(ID), TopicPartition("mixed", 1): Left(b"o" * 16)}
    await adoption(stage).all(mixed | left("far", 100_000), await loading.load(stage.session))
    assert await loaded(stage) == {}


async def test_what_the_store_lost_is_taken_over_and_what_was_deleted_is_not(stage: Stage) -> None:
    """A topic with an id that is not known, and partitions beyond those known; deleted ones are known by their ids."""
    kept, gone = [await stage.topics.create(NewTopic(name, 1)) for name in ("kept", "gone")]
    await stage.topics.delete("gone", gone.id)
    found = left("kept", 0, 1, topic_id=kept.id) | left("gone", 0, topic_id=gone.id) | left("lost", 0, topic_id=ID)
    found |= left("no-id", 0)
    assert await adoption(stage, lost=True).strays(found, await loading.load(stage.session))
    topics = await loaded(stage)
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {"kept": 2, "lost": 1}
    assert not await adoption(stage, lost=True).strays(found, await loading.load(stage.session)), "once"
    await adoption(stage).forget_deleted(found)
    assert await stage.there(nodes.deleted(gone.id)) is not None, "something of it lies there"
    await adoption(stage).forget_deleted({})
    assert await stage.there(nodes.deleted(gone.id)) is None
