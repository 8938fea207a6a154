"""CreateTopics and CreatePartitions, without sockets: each topic is handled on its own, up to a limit per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.topics import PARTITIONS_MAX
from pybroker.protocol import messages as m
from pybroker.server.api.handlers.topics import NO_ID, TOPICS_MAX
from tests.rows import with_each
from tests.server.handlers.desk import ELSEWHERE, HERE, Desk

NEW = m.CreateTopicsRequest.Topics
GROWN = m.CreatePartitionsRequest.Topics


def new(
    name: str, partitions: int = 1, factor: int = 1, assignment: Sequence[Sequence[int]] = (), **config: Any
) -> Any:
    given = [NEW.Assignments(partition_index=n, broker_ids=list(ids)) for n, ids in enumerate(assignment)]
    settings = [NEW.Configs(name=key.replace("_", "."), value=value) for key, value in config.items()]
    if given:
        partitions = factor = -1
    return NEW(name=name, num_partitions=partitions, replication_factor=factor, assignments=given, configs=settings)


async def create(desk: Desk, *topics: Any, version: int = 7, validate_only: bool = False) -> dict[str, int]:
    answer = await desk.ask("CreateTopics", version, topics=list(topics), timeout_ms=5000, validate_only=validate_only)
    return {topic.name: topic.error_code for topic in answer.topics}


def grown(name: str, count: int, assignments: Sequence[Sequence[int]] | None = None) -> Any:
    given = None if assignments is None else [GROWN.Assignments(broker_ids=list(ids)) for ids in assignments]
    return GROWN(name=name, count=count, assignments=given)


async def grow(desk: Desk, *topics: Any, version: int = 3, validate_only: bool = False) -> dict[str, int]:
    answer = await desk.ask(
        "CreatePartitions", version, topics=list(topics), timeout_ms=5000, validate_only=validate_only
    )
    return {topic.name: topic.error_code for topic in answer.results}


async def test_the_answer_describes_what_was_made(desk: Desk) -> None:
    """The answer has the topic's id, counts and settings: source 1 for the topic's own settings, 5 for defaults."""
    asked = new("t", assignment=[[HERE], [HERE], [ELSEWHERE]], segment_bytes="2000000")
    [topic] = (await desk.ask("CreateTopics", 7, topics=[asked], timeout_ms=5000)).topics
    image = desk.stage.metadata.image.topic("t")
    assert image is not None and topic.topic_id == image.id != NO_ID
    assert (topic.error_code, topic.num_partitions, topic.replication_factor) == (0, 3, 1)
    told = {config.name: (config.value, config.config_source) for config in topic.configs}
    assert told["segment.bytes"] == ("2000000", 1) and told["cleanup.policy"] == ("delete", 5)
    assert [replica.key.partition for replica in desk.replicas] == [0, 1]


async def test_what_is_validated_only_is_not_made(desk: Desk) -> None:
    asked = {"topics": [new("t", 2)], "timeout_ms": 5000, "validate_only": True}
    [topic] = (await desk.ask("CreateTopics", 7, **asked)).topics
    assert (topic.error_code, topic.topic_id, topic.num_partitions) == (0, NO_ID, 2)
    assert desk.stage.metadata.image.topic("t") is None and not list(desk.replicas)


@with_each(
    ("asked", "code"),
    [
        (new("a/b"), errors.INVALID_TOPIC_EXCEPTION),
        (new(""), errors.INVALID_TOPIC_EXCEPTION),
        (new("there"), errors.TOPIC_ALREADY_EXISTS),
        (new("t", 0), errors.INVALID_PARTITIONS),
        (new("t", -2), errors.INVALID_PARTITIONS),
        (new("t", PARTITIONS_MAX + 1), errors.INVALID_PARTITIONS),
        (new("t", 1, 3), errors.INVALID_REPLICATION_FACTOR),
        (new("t", 1, 0), errors.INVALID_REPLICATION_FACTOR),
        (new("t", assignment=[[9]]), errors.INVALID_REPLICA_ASSIGNMENT),
        (new("t", assignment=[[1, 1]]), errors.INVALID_REPLICA_ASSIGNMENT),
        (new("t", assignment=[[]]), errors.INVALID_REPLICA_ASSIGNMENT),
        (new("t", segment_bytes="a few"), errors.INVALID_CONFIG),
        (new("t", segment_bytes="-1"), errors.INVALID_CONFIG),
        (new("t", no_such_setting="1"), errors.INVALID_CONFIG),
    ],
)
@with_each("validate_only", [True, False])
async def test_a_topic_that_cannot_be_is_refused_by_itself(
    desk: Desk, asked: Any, code: int, validate_only: bool
) -> None:
    """An invalid topic is refused with its own code and leaves nothing; the other topic of the request is created."""
    image = desk.stage.metadata.image
    if image.topic("there") is None:
        await desk.topic("there")
    fine = f"fine{len(image.names)}"
    found = await create(desk, asked, new(fine), validate_only=validate_only)
    assert found == {asked.name: code, fine: 0}
    assert desk.stage.metadata.image.topic("t") is None


async def test_a_topic_that_is_named_twice(desk: Desk) -> None:
    """A topic that is named twice gets one answer, INVALID_REQUEST, and is not created."""
    assert await create(desk, new("t"), new("u"), new("t", 2)) == {"t": errors.INVALID_REQUEST, "u": 0}
    assert desk.stage.metadata.image.topic("t") is None


async def test_an_empty_request(desk: Desk) -> None:
    assert await create(desk) == {} and await grow(desk) == {}


@pytest.mark.parametrize(
    "topics",
    [
        [new(f"t{n}", 0) for n in range(TOPICS_MAX + 1)],
        [new("a", PARTITIONS_MAX), new("b", 1)],
    ],
    ids=["topics", "partitions"],
)
async def test_a_request_is_planned_only_up_to_its_limits(desk: Desk, topics: list[Any]) -> None:
    assert set((await create(desk, *topics)).values()) == {errors.POLICY_VIOLATION}
    assert desk.stage.metadata.image.topic("b") is None


async def test_as_many_topics_as_a_request_may_have(desk: Desk) -> None:
    """A request with the maximum number of topics is validated topic by topic: these have no partitions."""
    topics = [new(f"t{n}", 0) for n in range(TOPICS_MAX)]
    assert set((await create(desk, *topics)).values()) == {errors.INVALID_PARTITIONS}


async def test_a_topic_grows(desk: Desk) -> None:
    await desk.topic("t", 2)
    assert await grow(desk, grown("t", 4, [[HERE], [ELSEWHERE]])) == {"t": 0}
    assert desk.replicas.get("t", 2) is not None and desk.replicas.get("t", 3) is None
    image = desk.stage.metadata.image
    assert [state.leader for state in image.topic("t").partitions] == [1, 1, 1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (grown("none", 4), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (grown("t", 1), errors.INVALID_PARTITIONS),
        (grown("t", 2), errors.INVALID_PARTITIONS),
        (grown("t", 0), errors.INVALID_PARTITIONS),
        (grown("t", PARTITIONS_MAX + 1), errors.INVALID_PARTITIONS),
        (grown("t", 4, [[HERE]]), errors.INVALID_REPLICA_ASSIGNMENT),
        (grown("t", 3, [[9]]), errors.INVALID_REPLICA_ASSIGNMENT),
        (grown("t", 3, []), errors.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_growth_that_cannot_be(desk: Desk, asked: Any, code: int) -> None:
    await desk.topic("t", 2)
    await desk.topic("u")
    assert await grow(desk, asked, grown("u", 2)) == {asked.name: code, "u": 0}
    assert len(desk.stage.metadata.image.topic("t").partitions) == 2  # type: ignore[union-attr]


async def test_growth_that_is_named_twice_or_validated_only(desk: Desk) -> None:
    await desk.topic("t")
    assert await grow(desk, grown("t", 2), grown("t", 3)) == {"t": errors.INVALID_REQUEST}
    assert await grow(desk, grown("t", 2), validate_only=True) == {"t": 0}
    assert len(desk.stage.metadata.image.topic("t").partitions) == 1  # type: ignore[union-attr]
