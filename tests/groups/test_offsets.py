"""Committed offsets: accepted, refused, deleted with their topic, expired, and unavailable while they are loaded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pybroker import errors
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.groups.members import Member, commit, committed, stable
from tests.harness import eventually
from tests.server.live import Live, Wire

Make = Callable[..., Awaitable[Member]]
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MINUTE_MS = 60_000


async def test_metadata_is_taken_up_to_its_limit(wire: Wire) -> None:
    """offset.metadata.max.bytes is a limit in bytes: tested at the limit and one byte above."""
    assert await commit(wire, "g", {"t0": 5}, committed_metadata="é" * 2048) == [0]
    assert await commit(wire, "g", {"t0": 6}, committed_metadata="é" * 2048 + "x") == [errors.OFFSET_METADATA_TOO_LARGE]
    assert await committed(wire, "g") == {"t0": 5}


async def test_what_is_unknown_is_refused_alone(wire: Wire) -> None:
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert await commit(wire, "g", {"t0": 1, "t9": 1, "nope0": 1}) == [0, unknown, unknown]
    assert await committed(wire, "g") == {"t0": 1}


async def test_only_members_commit_to_a_group_that_has_some(wire: Wire, member: Make) -> None:
    """A commit with a wrong generation, a wrong member id or none, or between join and sync, is refused."""
    one = await member()
    assert await one.join() == 0
    assert await one.commit(t0=1) == [errors.REBALANCE_IN_PROGRESS]
    await one.sync({one.id: b""})
    assert await one.commit(t0=1) == [0]
    assert await commit(wire, "g", {"t0": 2}) == [errors.UNKNOWN_MEMBER_ID]
    assert await commit(wire, "g", {"t0": 2}, "nobody", one.generation) == [errors.UNKNOWN_MEMBER_ID]
    assert await commit(wire, "g", {"t0": 2}, one.id, one.generation + 1) == [errors.ILLEGAL_GENERATION]
    assert await commit(wire, "new", {"t0": 2}, "m", 3) == [errors.ILLEGAL_GENERATION]
    assert await commit(wire, "new", {"t0": 2}, "m", 3, version=9) == [errors.GROUP_ID_NOT_FOUND]
    assert await committed(wire, "g") == {"t0": 1}


async def test_offsets_of_a_live_member_outlast_the_time_it_gave_them(live: Live, member: Make) -> None:
    """Kafka-go and sarama commit with a retention time (v2), but offsets of a group with members stay (KIP-211). Two
    sweeps expire another group's offset meanwhile."""
    await live.restart("offsets.retention.check.interval.ms=50")
    one = await member()
    await eventually("the groups are loaded", lambda: listed(one.wire))
    await stable(one)

    async def commit_for_a_moment(group: str, **who: Any) -> None:
        kind = m.OffsetCommitRequest.Topics
        topics = [kind(name="t", partitions=[kind.Partitions(partition_index=0, committed_offset=5)])]
        answer = await one.wire.call("OffsetCommit", 2, group_id=group, topics=topics, retention_time_ms=1, **who)
        assert answer.topics[0].partitions[0].error_code == 0

    await commit_for_a_moment("g", member_id=one.id, generation_id_or_member_epoch=one.generation)
    for _ in range(2):
        await commit_for_a_moment("h", member_id="", generation_id_or_member_epoch=-1)
        await eventually("it has expired", lambda: is_forgotten(one.wire, "h"))
    assert await committed(one.wire, "g") == {"t0": 5}


async def is_forgotten(wire: Wire, group: str) -> bool:
    return await committed(wire, group) == {}


async def test_a_deleted_topic_takes_its_offsets_along(live: Live, wire: Wire) -> None:
    """A new topic of that name is read from the group's reset position, not from the old topic's offset."""
    await wire.create("u")
    assert await commit(wire, "g", {"t0": 1, "u0": 2}) == [0, 0]
    assert await commit(wire, "h", {"u0": 3}) == [0]
    await wire.call("DeleteTopics", 5, topic_names=["u"], timeout_ms=5000)
    await wire.create("u")
    assert await committed(wire, "g") == {"t0": 1}
    assert await committed(wire, "h") == {}
    await live.restart()
    wire = await live.connect()
    await eventually("the groups are loaded", lambda: listed(wire))
    assert await committed(wire, "g") == {"t0": 1}


async def test_a_group_without_members_goes_with_its_last_topic(live: Live, wire: Wire, member: Make) -> None:
    """A group with members stays, and so does one with an offset in another topic; the empty group is gone for good."""
    await wire.create("u")
    left, busy = await member("left"), await member("busy")
    for one in (left, busy):
        await stable(one)
        assert await one.commit(u0=1) == [0]
    assert await left.leave() == 0
    assert await commit(wire, "elsewhere", {"t0": 1, "u0": 1}) == [0, 0]
    assert await commit(wire, "simple", {"u0": 1}) == [0]
    assert await names(wire) == {"left", "busy", "elsewhere", "simple"}
    await wire.call("DeleteTopics", 5, topic_names=["u"], timeout_ms=5000)
    assert await names(wire) == {"busy", "elsewhere"}
    await live.restart()
    wire = await live.connect()
    await eventually("the groups are loaded", lambda: listed(wire))
    assert await names(wire) == {"busy", "elsewhere"}
    assert await committed(wire, "h") == {}


async def listed(wire: Wire) -> bool:
    return (await wire.call("ListGroups", 4)).error_code == 0


async def names(wire: Wire) -> set[str]:
    return {group.group_id for group in (await wire.call("ListGroups", 4)).groups}


async def test_without_its_topic_there_are_no_groups_and_then_new_ones(wire: Wire, member: Make) -> None:
    """After __consumer_offsets is deleted, members have to find a coordinator, which creates the topic again, empty."""
    one = await member()
    await stable(one)
    await wire.call("DeleteTopics", 5, topic_names=[OFFSETS_TOPIC], timeout_ms=5000)
    assert await one.heartbeat() == errors.COORDINATOR_NOT_AVAILABLE
    found = await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    assert found.coordinators[0].error_code == 0
    assert await committed(wire, "g") == {}
    one.id = ""
    assert await one.join() == 0


async def test_deleting_offsets_spares_what_the_group_reads(wire: Wire, member: Make) -> None:
    """OffsetDelete refuses a subscribed topic, and answers GROUP_ID_NOT_FOUND for an unknown group."""
    await wire.create("u")
    one = await member()
    await stable(one)
    assert await one.commit(t0=1, u0=2) == [0, 0]
    kind = m.OffsetDeleteRequest.Topics
    topics = [kind(name=name, partitions=[kind.Partitions(partition_index=0)]) for name in ("t", "u")]
    answer = await wire.call("OffsetDelete", 0, group_id="g", topics=topics)
    codes = [p.error_code for topic in answer.topics for p in topic.partitions]
    assert codes == [errors.GROUP_SUBSCRIBED_TO_TOPIC, 0]
    assert await committed(wire, "g") == {"t0": 1}
    answer = await wire.call("OffsetDelete", 0, group_id="none", topics=topics)
    assert answer.error_code == errors.GROUP_ID_NOT_FOUND
