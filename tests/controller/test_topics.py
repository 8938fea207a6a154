"""Topics are created, extended and deleted, as seen by the store, the controller's context and the brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from random import Random

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.planning import NewTopic, Planner
from tests.controller.stage import Stage, live_broker
from tests.harness import eventually


async def refused(work: Awaitable[object]) -> int:
    with pytest.raises(KafkaError) as told:
        await work
    return told.value.code


async def test_a_new_topic_is_known_everywhere(stage: Stage) -> None:
    """The store has the topic in Kafka's format, and brokers get it with its settings."""
    topic = await stage.topics.create(NewTopic("t", 4, 2, config={"retention.ms": "5"}))
    known = stage.context.topics["t"]
    assert (known.id, [state.replicas for state in known.partitions]) == (
        topic.id, [state.replicas for state in topic.partitions]
    )  # fmt: skip
    image = stage.metadata.image
    shown = image.topic("t")
    assert shown is not None and (shown.id, shown.partitions) == (topic.id, known.partitions)
    assert (image.controller_id, image.controller_epoch) == (1, stage.context.fence.epoch)
    assert stage.topic_configs.topic("t") == {"retention.ms": "5"}
    node = json.loads(await stage.there(nodes.topic("t")) or b"")
    assert (node["version"], node["topic_id"], len(node["partitions"])) == (3, nodes.id_text(topic.id), 4)
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
    before, told = await stage.tree(), list(stage.told)
    assert await refused(stage.topics.create(new)) == code
    assert (await stage.tree(), stage.told) == (before, told)


async def test_of_two_at_once_one_is_created(stage: Stage) -> None:
    done = await asyncio.gather(*(stage.topics.create(NewTopic("t")) for _ in range(2)), return_exceptions=True)
    assert [getattr(each, "code", 0) for each in done] == [0, errors.TOPIC_ALREADY_EXISTS]


async def test_a_topic_grows_where_it_is(stage: Stage) -> None:
    """Existing partitions stay as they were, at their brokers too; only the new ones are created and sent."""
    await stage.topics.create(NewTopic("t", 2, 2))
    small, before = stage.context.topics["t"], stage.metadata.image
    await stage.topics.grow("t", 4, [[3, 1], [1, 2]])
    grown = stage.context.topics["t"]
    assert grown.partitions[:2] == small.partitions and grown.id == small.id
    assert [state.replicas for state in grown.partitions[2:]] == [(3, 1), (1, 2)]
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


async def test_a_deleted_topic_is_gone(stage: Stage) -> None:
    """Brokers learn of the deletion before the logs are deleted; then the name is free."""
    topic = await stage.topics.create(NewTopic("t", 2))
    assert await refused(stage.topics.delete("t", b"x" * 16)) == errors.UNKNOWN_TOPIC_ID
    assert (await stage.topics.delete("t", topic.id)).id == topic.id
    assert stage.metadata.image.topic("t") is None
    await stage.topics.gone("t", topic.id)
    await eventually("the controller has forgotten it", lambda: "t" not in stage.context.topics)
    await eventually("so have brokers", lambda: stage.topic_configs.topic("t") == {})
    for path in (nodes.topic("t"), nodes.topic_config("t"), nodes.deletion("t")):
        assert await stage.there(path) is None
    assert await refused(stage.topics.delete("t", topic.id)) == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert (await stage.topics.create(NewTopic("t"))).id != topic.id


def test_a_topic_does_not_grow_beyond_the_brokers_that_live() -> None:
    """New partitions have as many replicas as the others, or the request is refused; given replicas may be any live
    brokers."""
    planner = Planner(BrokerConfig.load(None, []), Random(0))
    living = {number: live_broker(number) for number in (1, 2)}
    with pytest.raises(KafkaError) as refused:
        planner.growth("t", [(1, 2, 3)], 2, None, living)
    assert refused.value.code == errors.INVALID_REPLICATION_FACTOR
    living[3] = live_broker(3)
    ((*replicas,),) = planner.growth("t", [(1, 2, 3)], 2, None, living)
    assert sorted(replicas) == [1, 2, 3]
    assert planner.growth("t", [(1,)], 2, [[2]], {2: living[2]}) == [[2]]
