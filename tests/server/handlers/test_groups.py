"""The APIs of consumer groups, without sockets: answers of each version, and unknown groups or members."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.protocol import messages as m
from tests.server.handlers.desk import ELSEWHERE, HERE, Desk

COMMITTED = m.OffsetCommitRequest.Topics
FETCHED = m.OffsetFetchRequest.Groups
DELETED = m.OffsetDeleteRequest.Topics
LEFT = m.LeaveGroupRequest.Members
UNKNOWN = errors.UNKNOWN_TOPIC_OR_PARTITION


async def serve(desk: Desk) -> None:
    """Make the desk the leader of all groups, and create a topic with two partitions."""
    await desk.topic(OFFSETS_TOPIC, 2, cleanup_policy="compact")
    await desk.stage.coordinator.loaded()
    await desk.topic("t", 2)


async def commit(desk: Desk, group: str, *asked: tuple[str, int, int], version: int = 8, **more: Any) -> list[int]:
    """Commit (topic, partition, offset) entries; return the error code of each."""
    topics = [
        COMMITTED(name=t, partitions=[COMMITTED.Partitions(partition_index=p, committed_offset=o)]) for t, p, o in asked
    ]
    fields = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1, **more}
    answer = await desk.ask("OffsetCommit", version, group_id=group, topics=topics, **fields)
    return [p.error_code for topic in answer.topics for p in topic.partitions]


async def stands(desk: Desk, *groups: tuple[str, list[Any] | None]) -> list[tuple[int, dict[str, dict[int, int]]]]:
    asked = [FETCHED(group_id=group, topics=topics) for group, topics in groups]
    answer = await desk.ask("OffsetFetch", 8, groups=asked, require_stable=False)
    return [
        (g.error_code, {t.name: {p.partition_index: p.committed_offset for p in t.partitions} for t in g.topics})
        for g in answer.groups
    ]


async def join(desk: Desk, group: str, member_id: str = "", version: int = 9, **more: Any) -> Any:
    fields = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [m.JoinGroupRequest.Protocols(name="range", metadata=b"")],
        **more,
    }
    return await desk.ask("JoinGroup", version, group_id=group, member_id=member_id, **fields)


async def test_the_coordinator_is_found(desk: Desk) -> None:
    """FindCoordinator answers one group or many; unknown key types are refused."""
    await serve(desk)
    old = await desk.ask("FindCoordinator", 3, key="g", key_type=0)
    assert (old.error_code, old.node_id, old.host) == (0, HERE, "host-1")
    many = (await desk.ask("FindCoordinator", 4, coordinator_keys=["g", "g", ""], key_type=0)).coordinators
    assert [(c.key, c.error_code, c.node_id) for c in many] == [("g", 0, HERE), ("g", 0, HERE), ("", 0, HERE)]
    assert (await desk.ask("FindCoordinator", 4, coordinator_keys=[], key_type=0)).coordinators == []
    for kind, key in ((2, "g"), (1, "")):
        [one] = (await desk.ask("FindCoordinator", 4, coordinator_keys=[key], key_type=kind)).coordinators
        assert (one.error_code, one.node_id, bool(one.error_message)) == (errors.INVALID_REQUEST, -1, True)
        assert (await desk.ask("FindCoordinator", 3, key=key, key_type=kind)).error_code == errors.INVALID_REQUEST


async def test_offsets_are_committed_and_fetched(desk: Desk) -> None:
    """Offsets of existing partitions are committed; OffsetFetch returns all, or each named one once, or -1."""
    await serve(desk)
    assert await commit(desk, "g", ("t", 0, 5), ("t", 9, 1), ("none", 0, 1), ("t", 1, 6)) == [0, UNKNOWN, UNKNOWN, 0]
    assert await commit(desk, "g") == []
    named = [FETCHED.Topics(name="t", partition_indexes=[1, 1, 9]), FETCHED.Topics(name="t", partition_indexes=[1])]
    found = await stands(desk, ("g", None), ("h", None))
    assert found == [(0, {"t": {0: 5, 1: 6}}), (0, {})]
    assert await stands(desk, ("g", named)) == [(0, {"t": {1: 6, 9: -1}})]
    assert await stands(desk, ("g", [])) == [(0, {})]
    refused = errors.INVALID_REQUEST
    assert [code for code, _ in await stands(desk, ("g", None), ("h", None), ("g", []))] == [refused, 0, refused]
    assert await stands(desk) == []


@pytest.mark.parametrize(("version", "code"), [(8, errors.ILLEGAL_GENERATION), (9, errors.GROUP_ID_NOT_FOUND)])
async def test_a_commit_of_a_member_whose_group_is_gone(desk: Desk, version: int, code: int) -> None:
    await serve(desk)
    member = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    assert await commit(desk, "g", ("t", 0, 5), version=version, **member) == [code]


async def test_a_metadata_that_is_too_large(desk: Desk) -> None:
    """Only the partition whose metadata is one byte over the limit is refused."""
    await serve(desk)
    most = desk.stage.config["offset.metadata.max.bytes"]
    kind = COMMITTED.Partitions
    asked = [kind(partition_index=n, committed_offset=1, committed_metadata="x" * (most + n)) for n in (0, 1)]
    fields: dict[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1}
    answer = await desk.ask("OffsetCommit", 8, group_id="g", topics=[COMMITTED(name="t", partitions=asked)], **fields)
    codes = [p.error_code for p in answer.topics[0].partitions]
    assert codes == [0, errors.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.parametrize("code", [errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR])
async def test_a_group_that_is_not_led_here(desk: Desk, code: int) -> None:
    """A group without a coordinator, or with another one, gets this code in every version that has a field for it."""
    await desk.topic("t", 2)
    if code == errors.NOT_COORDINATOR:
        await desk.topic(OFFSETS_TOPIC, 2, at=ELSEWHERE, cleanup_policy="compact")
        await desk.stage.coordinator.loaded()
    assert await commit(desk, "g", ("t", 0, 1)) == [code]
    assert await stands(desk, ("g", None)) == [(code, {})]
    asked = [m.OffsetFetchRequest.Topics(name="t", partition_indexes=[0, 1])]
    for version in (1, 3, 7):  # aiokafka reads only partition errors, and would take the group for a new one
        old = await desk.ask("OffsetFetch", version, group_id="g", topics=asked, require_stable=False)
        assert [(p.error_code, p.committed_offset) for p in old.topics[0].partitions] == [(code, -1)] * 2
        assert old.error_code == code or version < 2
    assert (await join(desk, "g")).error_code == code
    described = (await desk.ask("DescribeGroups", 5, groups=["g"])).groups
    assert [group.error_code for group in described] == [code]
    deleted = (await desk.ask("DeleteGroups", 2, groups_names=["g"])).results
    assert [group.error_code for group in deleted] == [code]
    assert (await desk.ask("Heartbeat", 4, group_id="g", generation_id=1, member_id="m")).error_code == code


async def test_a_member_joins_syncs_beats_and_leaves(desk: Desk) -> None:
    await serve(desk)
    first = await join(desk, "g")
    assert first.error_code == errors.MEMBER_ID_REQUIRED and first.member_id
    joined = await join(desk, "g", first.member_id)
    me, generation = joined.member_id, joined.generation_id
    assert (joined.error_code, joined.leader, [x.member_id for x in joined.members]) == (0, me, [me])
    who = {"group_id": "g", "generation_id": generation, "member_id": me}
    share = m.SyncGroupRequest.Assignments(member_id=me, assignment=b"all")
    synced = await desk.ask("SyncGroup", 5, assignments=[share], **who)
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
    assert (await desk.ask("Heartbeat", 4, **who)).error_code == 0
    stale = {**who, "generation_id": generation - 1}
    assert (await desk.ask("Heartbeat", 4, **stale)).error_code == errors.ILLEGAL_GENERATION
    assert (await desk.ask("Heartbeat", 4, **{**who, "member_id": "m"})).error_code == errors.UNKNOWN_MEMBER_ID
    [group] = (await desk.ask("DescribeGroups", 5, groups=["g", "g"])).groups
    assert (group.group_state, group.protocol_data, [x.member_id for x in group.members]) == ("Stable", "range", [me])
    left = await desk.ask("LeaveGroup", 4, group_id="g", members=[LEFT(member_id="m"), LEFT(member_id=me)])
    assert (left.error_code, [x.error_code for x in left.members]) == (0, [errors.UNKNOWN_MEMBER_ID, 0])
    assert (await desk.ask("LeaveGroup", 2, group_id="g", member_id=me)).error_code == errors.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("group", "how", "code"),
    [
        ("", {}, errors.INVALID_GROUP_ID),
        ("g", {"session_timeout_ms": 1}, errors.INVALID_SESSION_TIMEOUT),
        ("g", {"protocols": []}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ("g", {"protocol_type": ""}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ("g", {"member_id": "nobody"}, errors.UNKNOWN_MEMBER_ID),
    ],
)
async def test_who_may_not_join(desk: Desk, group: str, how: dict[str, Any], code: int) -> None:
    await serve(desk)
    assert (await join(desk, group, **how)).error_code == code
    assert (await desk.ask("ListGroups", 4)).groups == []


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, errors.GROUP_ID_NOT_FOUND)])
async def test_groups_that_there_are_not(desk: Desk, version: int, code: int) -> None:
    """An unknown group is described as Dead; from v6 on with an error."""
    await serve(desk)
    [group] = (await desk.ask("DescribeGroups", version, groups=["none"])).groups
    assert (group.error_code, group.group_state, bool(group.error_message)) == (code, "Dead", bool(code))
    found = (await desk.ask("DeleteGroups", 2, groups_names=["none", "none"])).results
    assert [(r.group_id, r.error_code) for r in found] == [("none", errors.GROUP_ID_NOT_FOUND)]
    asked = [DELETED(name="t", partitions=[DELETED.Partitions(partition_index=0)])]
    answer = await desk.ask("OffsetDelete", 0, group_id="none", topics=asked)
    assert (answer.error_code, answer.topics) == (errors.GROUP_ID_NOT_FOUND, [])


async def test_offsets_and_groups_are_deleted(desk: Desk) -> None:
    """An offset is deleted alone, also one of an unknown partition; the group is listed until it is deleted."""
    await serve(desk)
    await commit(desk, "g", ("t", 0, 5), ("t", 1, 6))

    async def listed(states: list[str], types: list[str]) -> list[tuple[str, str]]:
        answer = await desk.ask("ListGroups", 5, states_filter=states, types_filter=types)
        return [(group.group_id, group.group_state) for group in answer.groups]

    assert await listed([], []) == await listed(["empty"], ["CLASSIC"]) == [("g", "Empty")]
    assert await listed(["Stable"], []) == await listed([], ["share"]) == []
    asked = [DELETED(name="t", partitions=[DELETED.Partitions(partition_index=p) for p in (0, 9, 0)])]
    answer = await desk.ask("OffsetDelete", 0, group_id="g", topics=asked)
    assert [p.error_code for p in answer.topics[0].partitions] == [0, 0, 0]
    assert await stands(desk, ("g", None)) == [(0, {"t": {1: 6}})]
    [deleted] = (await desk.ask("DeleteGroups", 2, groups_names=["g"])).results
    assert deleted.error_code == 0 and await listed([], []) == []
