"""Partitions in the log dirs that the store does not have: adopted at a first start, or after a loss of the store."""

from __future__ import annotations

import pytest

from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.decisions.topics import Topic
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker import loading
from pybroker.metadata.lone_broker.adoption import Adoption
from pybroker.metadata.planning import NewTopic
from pybroker.model import TopicPartition
from tests.controller.life import Left
from tests.controller.stage import Stage

ID, OTHER = b"i" * 16, b"o" * 16


def adoption(stage: Stage) -> Adoption:
    return Adoption(stage.session, stage.context.fence, 1, stage.random)


def left(topic: str, *partitions: int, **what: object) -> dict[TopicPartition, Left]:
    return {TopicPartition(topic, index): Left(**what) for index in partitions}  # type: ignore[arg-type]


async def loaded(stage: Stage) -> dict[str, Topic]:
    return {topic.name: topic for topic in (await loading.load(stage.session)).topics}


async def test_a_first_start_takes_over_what_lies_there(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Topics keep their id or get one, and missing partitions are created. With unknown settings retention is off, and
    one log line names the topics."""
    found = left("old", 0, 2) | left("known", 0, topic_id=ID) | left(OFFSETS_TOPIC, 0)
    await adoption(stage).all(found, await loading.load(stage.session), dict, lost=False)
    topics = await loaded(stage)
    assert set(topics) == {"old", "known", OFFSETS_TOPIC} and topics["known"].id == ID
    old = topics["old"]
    assert len(old.id) == 16 and [state.leader_epoch for state in old.partitions] == [3, 0, 3]
    assert all(state.replicas == state.isr == (1,) and state.leader == 1 for state in old.partitions)
    assert old.config == topics["known"].config == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert topics[OFFSETS_TOPIC].config == {"cleanup.policy": "compact"}
    [said] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert said.startswith("adopted topics keep all records count=2 topics=known,old ")


async def test_topics_are_taken_over_with_the_settings_that_are_known(stage: Stage) -> None:
    """Retention is off for a topic whose settings do not have it: Kafka's default may differ from the one here."""
    found = left("state", 0, topic_id=ID) | left("plain", 0, topic_id=OTHER) | left("new", 0)
    known = {ID: {"cleanup.policy": "compact"}, OTHER: {"retention.ms": "1000"}}
    await adoption(stage).all(found, await loading.load(stage.session), lambda: known, lost=False)
    kept = {"retention.ms": "-1", "retention.bytes": "-1"}
    assert {name: topic.config for name, topic in (await loaded(stage)).items()} == {
        "state": {"cleanup.policy": "compact"}, "plain": {**kept, "retention.ms": "1000"}, "new": kept,
    }  # fmt: skip


async def test_where_settings_are_lost_nothing_is_deleted_by_defaults(stage: Stage) -> None:
    await adoption(stage).all(left("t", 0), await loading.load(stage.session), dict, lost=True)
    assert (await loaded(stage))["t"].config == {"retention.ms": "-1", "retention.bytes": "-1"}


async def test_what_cannot_be_one_topic_is_left_alone(stage: Stage) -> None:
    """Partitions with different ids, or with an impossible number, are not adopted."""
    mixed = {TopicPartition("mixed", 0): Left(ID), TopicPartition("mixed", 1): Left(b"o" * 16)}
    await adoption(stage).all(mixed | left("far", 100_000), await loading.load(stage.session), dict, lost=False)
    assert await loaded(stage) == {}


async def test_what_the_store_lost_is_taken_over_and_what_was_deleted_is_not(stage: Stage) -> None:
    """Topics with unknown ids and new partitions of known topics are adopted; deleted topics are known by their ids."""
    kept, gone = [await stage.topics.create(NewTopic(name, 1)) for name in ("kept", "gone")]
    await stage.topics.delete("gone", gone.id)
    await stage.topics.gone("gone", gone.id)
    await stage.session.create(nodes.deleted(gone.id))
    found = left("kept", 0, 1, topic_id=kept.id) | left("gone", 0, topic_id=gone.id) | left("lost", 0, topic_id=ID)
    found |= left("no-id", 0)
    assert await adoption(stage).strays(found, await loading.load(stage.session))
    topics = await loaded(stage)
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {"kept": 2, "lost": 1}
    assert not await adoption(stage).strays(found, await loading.load(stage.session)), "adopted again"
    await adoption(stage).forget_deleted(found)
    assert await stage.there(nodes.deleted(gone.id)) is not None, "a directory of it is left"
    await adoption(stage).forget_deleted({})
    assert await stage.there(nodes.deleted(gone.id)) is None
