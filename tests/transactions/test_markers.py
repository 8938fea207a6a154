"""Markers on their way to the partitions: to the leader of the day, again and again, and never given up too early."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pybroker import errors
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.transactions import markers
from tests.transactions.kit import BROKER, OTHER, T0, T1, TX, U0, World
from tests.virtual import settle, story

SOON_S = 0.05


async def ended(world: World, *keys: TopicPartition, commit: bool = True) -> ProducerIdAndEpoch:
    """A producer whose transaction on these partitions is decided."""
    await world.lead()
    me = await world.init()
    await world.coordinator.add_partitions(TX, me, keys or [T0, T1])
    await world.coordinator.end_transaction(TX, me, commit)
    await asyncio.sleep(SOON_S)
    return me


@story
@pytest.mark.parametrize("code", sorted(markers.AGAIN | {errors.UNKNOWN_SERVER_ERROR, errors.CORRUPT_MESSAGE}))
async def test_a_marker_that_is_not_written_is_sent_again(world: World, code: int) -> None:
    """Fault 40: a partition that does not take its marker gets it again, with the leader of the day, for as long as it
    takes; nothing is struck off."""
    world.answers = lambda broker, key: code if key == T0 else 0
    await ended(world)
    await asyncio.sleep(100)
    assert world.state == "PrepareCommit" and [key for *_, key in world.sent] == [T1]
    world.answers = lambda broker, key: code if broker == BROKER else 0
    world.show(leader=OTHER)
    await asyncio.sleep(SOON_S)
    assert world.state == "CompleteCommit" and [each[0] for each in world.sent] == [BROKER, OTHER]


@story
@pytest.mark.parametrize("code", sorted(markers.SUPERSEDED))
async def test_a_later_decision_in_the_partition_ends_the_wait(
    world: World, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 15: a marker that is refused because a later one was there does not leave the id busy for ever; only a
    coordinator that still leads the log can store the completion."""
    world.answers = lambda broker, key: code if key == T0 else 0
    await ended(world)
    assert world.state == "CompleteCommit"
    assert [r for r in caplog.records if r.getMessage().startswith("transaction marker superseded")]


@story
async def test_a_partition_without_a_leader_is_not_given_up(world: World) -> None:
    """Fault 12: a coordinator that has no metadata yet, or none of a topic, or of a leader, keeps the marker."""
    world.show(leader=-1)
    await ended(world, T0)
    assert world.state == "PrepareCommit" and world.queues.unknown_destinations == 1
    world.show(topics="u")
    await asyncio.sleep(10)
    assert world.state == "PrepareCommit", "the topic is in the store"
    world.show()
    await asyncio.sleep(SOON_S)
    assert world.state == "CompleteCommit" and [key for *_, key in world.sent] == [T0]


@story
async def test_a_deleted_topic_needs_no_marker(world: World) -> None:
    """Fault 13: a topic that the store no longer has is struck off, and the transaction is completed. One of its name
    that is made then has had no part in it."""
    world.answers = lambda broker, key: errors.UNKNOWN_TOPIC_OR_PARTITION if key.topic == "t" else 0
    await ended(world, T0, T1, U0)
    world.show(topics="u")
    await asyncio.sleep(1)
    assert world.state == "PrepareCommit"
    world.in_store -= {T0, T1}
    await asyncio.sleep(1)
    assert world.state == "CompleteCommit" and [key for *_, key in world.sent] == [U0]


@story
async def test_a_store_that_cannot_be_read_gives_nothing_up(world: World) -> None:
    async def hangs(key: TopicPartition) -> bool:
        await asyncio.sleep(3600)
        return False

    world.queues._exists = hangs  # type: ignore[method-assign]
    world.show(topics="u")
    world.metadata.expect_topics(True)
    await ended(world, T0, U0)
    await asyncio.sleep(30)
    assert world.state == "PrepareCommit" and [key for *_, key in world.sent] == [U0]


@story
async def test_a_broker_that_dies_is_not_waited_for(world: World) -> None:
    """Markers that are on their way to a broker find the new leader when the broker leaves the cluster."""
    real = world.queues._ask

    async def frozen(broker: int, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        if broker == BROKER:
            await asyncio.sleep(3600)
        return await real(broker, request)

    world.queues._ask = frozen  # type: ignore[method-assign]
    await ended(world)
    world.show(leader=OTHER, brokers=(OTHER,))
    await asyncio.sleep(1)
    assert world.state == "CompleteCommit" and {each[0] for each in world.sent} == {OTHER}


@story
async def test_a_connection_that_fails(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that cannot be reached is tried again; the log has one line."""
    real, failures = world.queues._ask, iter(range(5))

    async def refusing(broker: int, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        if next(failures, None) is not None:
            raise ConnectionRefusedError("no server listens")
        return await real(broker, request)

    world.queues._ask = refusing  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        await ended(world)
        await asyncio.sleep(5)
    assert world.state == "CompleteCommit"
    lines = [r for r in caplog.records if r.getMessage().startswith("transaction markers not sent")]
    assert len(lines) == 1


@story
async def test_one_partition_that_waits_does_not_hold_up_the_others(world: World) -> None:
    """While one marker waits for its followers, those of other transactions go to the same broker."""
    real, first = world.queues._ask, asyncio.Event()

    async def slow(broker: int, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        if not first.is_set():
            first.set()
            await asyncio.sleep(30)
        return await real(broker, request)

    world.queues._ask = slow  # type: ignore[method-assign]
    await ended(world, T0)
    other = await world.init(name="other")
    await world.coordinator.add_partitions("other", other, [U0])
    await world.coordinator.end_transaction("other", other, False)
    await asyncio.sleep(1)
    assert [(each[1], each[5]) for each in world.sent] == [(other.id, U0)]


@story
async def test_many_partitions_go_out_in_few_requests(world: World) -> None:
    """Fault 45: the markers of 10,000 partitions go out in requests of a bounded size."""
    keys = [TopicPartition("t", index) for index in range(10_000)]
    sizes: list[int] = []
    real = world.queues._ask

    async def counted(broker: int, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        sizes.append(sum(len(topic.partition_indexes) for each in request.markers for topic in each.topics))
        return await real(broker, request)

    world.queues._ask = counted  # type: ignore[method-assign]
    world.show_many(10_000)
    await ended(world, *keys)
    await asyncio.sleep(1)
    assert world.state == "CompleteCommit" and sum(sizes) == 10_000 and max(sizes) <= markers.BATCH
    assert len(sizes) <= 10_000 / markers.BATCH + markers.IN_FLIGHT


@story
async def test_a_coordinator_that_resigns_sends_no_more(world: World) -> None:
    world.answers = lambda broker, key: errors.NOT_LEADER_OR_FOLLOWER
    await ended(world)
    world.coordinator.resign(0, 1)
    world.answers = lambda broker, key: 0
    await asyncio.sleep(5)
    await settle()
    assert not world.sent and not len(world.queues)
