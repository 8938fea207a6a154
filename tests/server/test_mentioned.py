"""Topics that clients name and that cannot be created: the answer has the reason, not LEADER_NOT_AVAILABLE forever."""

from __future__ import annotations

import asyncio

import pytest

from pybroker import Producer, errors
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from tests.harness import eventually
from tests.server.live import Live, Wire


async def mention(wire: Wire, *names: str) -> list[int]:
    asked = [m.MetadataRequest.Topics(name=name) for name in names]
    answer = await wire.call("Metadata", 12, topics=asked, allow_auto_topic_creation=True)
    return [topic.error_code for topic in answer.topics]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a_b", errors.INVALID_TOPIC_EXCEPTION),
        ("__cluster_metadata", errors.INVALID_TOPIC_EXCEPTION),
        ("a b", errors.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_a_name_that_cannot_be(live: Live, wire: Wire, name: str, code: int) -> None:
    await wire.create("a.b")
    assert await mention(wire, name) == await mention(wire, name) == [code]
    assert live.broker is not None and live.broker.topic_count == 1


async def test_two_names_of_one_request_that_collide(wire: Wire) -> None:
    """The first of two colliding names is created, the second is refused, however often the client asks."""
    assert await mention(wire, "x.y", "x_y") == [errors.LEADER_NOT_AVAILABLE, errors.INVALID_TOPIC_EXCEPTION]
    async with asyncio.timeout(60):
        while (codes := await mention(wire, "x.y", "x_y")) != [errors.NONE, errors.INVALID_TOPIC_EXCEPTION]:
            assert codes == [errors.LEADER_NOT_AVAILABLE, errors.INVALID_TOPIC_EXCEPTION]


async def test_more_replicas_than_brokers(live: Live, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """Each request is refused, and the reason is logged once."""
    await live.restart("default.replication.factor=3")
    wire = await live.connect()
    for _ in range(3):
        assert await mention(wire, "new") == [errors.INVALID_REPLICATION_FACTOR]
    assert len([r for r in caplog.records if r.getMessage().startswith("topic not created topic=new")]) == 1


async def test_the_offsets_topic_is_made_as_for_groups(live: Live, wire: Wire) -> None:
    """The offsets topic is compacted and has its number of partitions, even if a client only names it."""
    await live.restart("offsets.topic.num.partitions=7")
    wire = await live.connect()
    assert await mention(wire, OFFSETS_TOPIC) == [errors.LEADER_NOT_AVAILABLE]

    async def made() -> bool:
        return await mention(wire, OFFSETS_TOPIC) == [errors.NONE]

    await eventually("it is made", made)
    answer = await wire.call("Metadata", 12, topics=[m.MetadataRequest.Topics(name=OFFSETS_TOPIC)])
    assert len(answer.topics[0].partitions) == 7
    asked = m.DescribeConfigsRequest.Resources(resource_type=2, resource_name=OFFSETS_TOPIC, configuration_keys=None)
    configs = (await wire.call("DescribeConfigs", 4, resources=[asked])).results[0].configs
    assert {config.name: config.value for config in configs}["cleanup.policy"] == "compact"


async def test_a_producer_is_told_the_reason(live: Live, wire: Wire) -> None:
    """The producer's error is the reason, not that the topic was not found within max_block_ms."""
    await wire.create("a.b")
    assert live.broker is not None
    address = f"127.0.0.1:{live.broker.port}"

    def send() -> KafkaError:
        with (
            Producer(bootstrap_servers=address, max_block_ms=20_000) as producer,
            pytest.raises(KafkaError) as told,
        ):
            producer.send("a_b", b"1").result(60)
        return told.value

    problem = await asyncio.to_thread(send)
    assert problem.code == errors.INVALID_TOPIC_EXCEPTION and "a_b" in str(problem)
