"""Topics come, grow and go: what the store, the holders, the context and the brokers see of it, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from random import Random

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.controller import nodes
from pybroker.controller.election import elect
from pybroker.controller.loading import load
from pybroker.controller.planning import NewTopic, Planner
from pybroker.errors import KafkaError
from tests.controller.stage import Stage, live_broker


async def refused(work: Awaitable[object]) -> int:
    with pytest.raises(KafkaError) as told:
        await work
    return told.value.code


async def test_a_new_topic_is_known_everywhere(stage: Stage) -> None:
    """Made before it is shown; the store has it as Kafka does, and the brokers hear of it with its settings."""
    topic = await stage.topics.create(NewTopic("t", 4, 2, config={"retention.ms": "5"}))
    assert stage.holders.told == [("open", "t", 0), ("show", "t", 0)]
    assert stage.context.topics == {"t": topic}
    image = stage.metadata.image
    shown = image.topic("t")
    assert shown is not None and (shown.id, shown.partitions) == (topic.id, topic.partitions)
    assert (image.controller_id, image.controller_epoch) == (1, stage.context.fence.epoch)
    assert stage.topic_configs.topic("t") == {"retention.ms": "5"}
    node = json.loads(await stage.there(nodes.topic("t")) or b"")
    assert (node["version"], node["topic_id"], len(node["partitions"])) == (3, nodes.id_text(topic.id), 4)
    assert "made_from" not in node and node["directories"]["1"] == "dir-1"
    state = json.loads(await stage.there(nodes.state("t", 3)) or b"")
    replicas = node["partitions"]["3"]
    assert (state["leader"], state["isr"], state["leader_epoch"]) == (replicas[0], replicas, 0)


async def test_what_is_only_validated_changes_nothing(stage: Stage) -> None:
    before = await stage.tree()
    assert (await stage.topics.create(NewTopic("t", 2, 3), validate_only=True)).name == "t"
    await stage.topics.create(NewTopic("u"))
    await stage.topics.grow("u", 5, None, validate_only=True)
    assert len(stage.context.topics["u"].partitions) == 2, "num.partitions"
    assert "t" not in stage.context.topics and nodes.topic("t").encode() not in before


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("a/b"), errors.INVALID_TOPIC_EXCEPTION),
        (NewTopic("__cluster_metadata"), errors.INVALID_TOPIC_EXCEPTION),
        (NewTopic("there"), errors.TOPIC_ALREADY_EXISTS),
        (NewTopic("a_b"), errors.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t", 0), errors.INVALID_PARTITIONS),
        (NewTopic("t", 1, 4), errors.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, -1, {0: [1]}), errors.INVALID_REQUEST),
        (NewTopic("t", assignment={0: [1, 9]}), errors.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", config={"retention.ms": "soon"}), errors.INVALID_CONFIG),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(stage: Stage, new: NewTopic, code: int) -> None:
    for name in ("there", "a.b"):
        await stage.topics.create(NewTopic(name))
    before, told = await stage.tree(), list(stage.holders.told)
    assert await refused(stage.topics.create(new)) == code
    assert (await stage.tree(), stage.holders.told) == (before, told)


async def test_of_two_at_once_one_is_created(stage: Stage) -> None:
    done = await asyncio.gather(*(stage.topics.create(NewTopic("t")) for _ in range(2)), return_exceptions=True)
    assert [getattr(each, "code", 0) for each in done] == [0, errors.TOPIC_ALREADY_EXISTS]


async def test_a_topic_whose_logs_cannot_be_made_leaves_nothing(stage: Stage) -> None:
    """Neither a new one nor partitions that were added; afterwards both can be made."""
    await stage.topics.create(NewTopic("there", 2))
    before = stage.metadata.image
    stage.holders.refuses |= {"t", "there"}
    assert await refused(stage.topics.create(NewTopic("t"))) == errors.KAFKA_STORAGE_ERROR
    assert await refused(stage.topics.grow("there", 3, None)) == errors.KAFKA_STORAGE_ERROR
    assert stage.metadata.image is before and await stage.there(nodes.topic("t")) is None
    assert await stage.there(nodes.partition("there", 2)) is None
    assert (await load(stage.session)).topics == [stage.context.topics["there"]], "the store has it as it was"
    stage.holders.refuses.clear()
    await stage.topics.create(NewTopic("t"))
    await stage.topics.grow("there", 3, None)
    assert len(stage.context.topics["there"].partitions) == 3


async def test_a_topic_grows_where_it_is(stage: Stage) -> None:
    """What was there stays as it was, for those who hold it too; the new partitions alone are made and shown."""
    small = await stage.topics.create(NewTopic("t", 2, 2))
    before = stage.metadata.image
    await stage.topics.grow("t", 4, [[3, 1], [1, 2]])
    grown = stage.context.topics["t"]
    assert grown.partitions[:2] == small.partitions and grown.id == small.id
    assert [state.replicas for state in grown.partitions[2:]] == [(3, 1), (1, 2)]
    assert stage.holders.told[2:] == [("open", "t", 2), ("show", "t", 2)]
    shown = stage.metadata.image.topic("t")
    assert shown is not None and shown.partitions == grown.partitions
    assert before.partition("t", 2) is None and len(small.partitions) == 2


@pytest.mark.parametrize(
    ("name", "count", "given", "code"),
    [
        ("none", 3, None, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, errors.INVALID_PARTITIONS),
        ("t", 3, [[1], [2]], errors.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[1, 2]], errors.INVALID_REPLICA_ASSIGNMENT),
        ("__consumer_offsets", 3, None, errors.INVALID_REQUEST),
    ],
)
async def test_growth_that_cannot_be(
    stage: Stage, name: str, count: int, given: list[list[int]] | None, code: int
) -> None:
    await stage.topics.create(NewTopic("t"))
    await stage.topics.create(NewTopic("__consumer_offsets"))
    assert await refused(stage.topics.grow(name, count, given)) == code


async def test_a_deleted_topic_is_gone_and_its_id_remembered(stage: Stage) -> None:
    """Brokers hear of it before its logs go; whoever keeps something of it is told; its name is free again."""
    topic = await stage.topics.create(NewTopic("t", 2))
    heard: list[str] = []

    async def hear(name: str) -> None:
        heard.append(name)
        assert stage.metadata.image.topic("t") is None

    stage.topics.on_deleted.append(hear)
    assert await refused(stage.topics.delete("t", b"x" * 16)) == errors.UNKNOWN_TOPIC_ID
    assert await stage.topics.delete("t", topic.id) == topic
    assert heard == ["t"] and stage.holders.told[-1] == ("delete", "t", 0)
    assert "t" not in stage.context.topics and stage.topic_configs.topic("t") == {}
    for path in (nodes.topic("t"), nodes.topic_config("t"), nodes.deletion("t")):
        assert await stage.there(path) is None
    assert await stage.there(nodes.deleted(topic.id)) is not None
    assert await refused(stage.topics.delete("t", topic.id)) == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert (await stage.topics.create(NewTopic("t"))).id != topic.id


async def test_one_change_of_a_topic_at_a_time(stage: Stage) -> None:
    topic = await stage.topics.create(NewTopic("t"))
    with stage.topics.claim("t"):
        assert await refused(stage.topics.delete("t", topic.id)) == errors.REASSIGNMENT_IN_PROGRESS
        assert await refused(stage.topics.grow("t", 5, None)) == errors.REASSIGNMENT_IN_PROGRESS
    await stage.topics.delete("t", topic.id)


async def test_a_controller_that_was_replaced_changes_nothing(stage: Stage) -> None:
    """Its writes are fenced, and neither its own context nor what brokers were told changes."""
    await stage.topics.create(NewTopic("t"))
    other = await stage.store.session(6000)
    await stage.session.delete(nodes.CONTROLLER)
    assert await elect(other, 2, stage.wall_ms()) is not None
    image, topics = stage.metadata.image, dict(stage.context.topics)
    assert await refused(stage.topics.create(NewTopic("u"))) == errors.NOT_CONTROLLER
    assert await refused(stage.topics.grow("t", 5, None)) == errors.NOT_CONTROLLER
    assert await refused(stage.topics.delete("t", topics["t"].id)) == errors.NOT_CONTROLLER
    assert stage.metadata.image is image and stage.context.topics == topics


def test_a_topic_does_not_grow_beyond_the_brokers_that_live() -> None:
    """Its new partitions have as many replicas as the others, or none is made; who names the replicas may name those
    that live."""
    planner = Planner(BrokerConfig.load(None, []), Random(0))
    living = {number: live_broker(number) for number in (1, 2)}
    with pytest.raises(KafkaError) as refused:
        planner.growth("t", [(1, 2, 3)], 2, None, living)
    assert refused.value.code == errors.INVALID_REPLICATION_FACTOR
    living[3] = live_broker(3)
    ((*replicas,),) = planner.growth("t", [(1, 2, 3)], 2, None, living)
    assert sorted(replicas) == [1, 2, 3]
    assert planner.growth("t", [(1,)], 2, [[2]], {2: living[2]}) == [[2]]
