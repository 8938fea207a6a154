"""Members of groups over real sockets: they join, leave, vanish and return, also over a broker's restart."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.group import Joined, Synced
from pybroker.protocol import messages as m
from tests.groups.conftest import FEW
from tests.groups.members import Member, commit, committed, describe, stable
from tests.harness import eventually
from tests.server.live import Live, Wire

Make = Callable[..., Awaitable[Member]]
SHORT_SESSION_MS = 3_000
"""Short, as tests wait for its end, but longer than a busy machine delays a member's next request."""


async def test_three_members_share_the_work(wire: Wire, member: Make) -> None:
    """All join, the first is leader, each gets its assignment from the leader, and the group can be described."""
    members = [await member() for _ in range(3)]
    await stable(*members)
    assert [one.leads for one in members] == [True, False, False]
    assert sorted(members[0].members) == sorted(one.id for one in members)
    group = await describe(wire, "g")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert {(x.member_id, bytes(x.member_assignment)) for x in group.members} == {
        (one.id, str(n).encode()) for n, one in enumerate(members)
    }
    assert {await one.heartbeat() for one in members} == {0}


@pytest.mark.parametrize("version", range(10))
async def test_every_version_of_join_leads_to_a_stable_group(member: Make, version: int) -> None:
    one = await member()
    assert await one.join(version) == 0
    assert await one.sync({one.id: b"all"}) == (0, b"all")


async def test_a_member_that_leaves_makes_the_others_rejoin(wire: Wire, member: Make) -> None:
    first, second = await member(), await member()
    await stable(first, second)
    assert await second.leave() == 0
    assert await first.heartbeat() == errors.REBALANCE_IN_PROGRESS
    assert await second.heartbeat() == errors.UNKNOWN_MEMBER_ID
    assert await first.join() == 0
    assert await first.sync({first.id: b"all"}) == (0, b"all")


async def test_each_member_that_is_asked_to_leave_has_an_answer_of_its_own(wire: Wire, member: Make) -> None:
    """Each member in LeaveGroup has its own error code, in a group that exists or not."""
    one = await member()
    await stable(one)
    kind = m.LeaveGroupRequest.Members
    for group, codes in (("g", [0, errors.UNKNOWN_MEMBER_ID]), ("none", [errors.UNKNOWN_MEMBER_ID] * 2)):
        asked = [kind(member_id=one.id), kind(member_id="nobody")]
        answer = await wire.call("LeaveGroup", 5, group_id=group, members=asked)
        assert answer.error_code == 0
        assert [x.member_id for x in answer.members] == [one.id, "nobody"]
        assert [x.error_code for x in answer.members] == codes
        old = await wire.call("LeaveGroup", 1, group_id=group, member_id="nobody")
        assert old.error_code == errors.UNKNOWN_MEMBER_ID


async def test_a_silent_member_is_out_after_its_session(member: Make) -> None:
    first, second = await member(), await member(session_ms=SHORT_SESSION_MS)
    await stable(first, second)

    async def told() -> bool:
        return await first.heartbeat() == errors.REBALANCE_IN_PROGRESS

    await eventually("the silent member is missed", told)
    assert await first.join() == 0
    assert first.members == [first.id]


async def test_a_static_member_keeps_its_place_over_a_restart_of_its_process(member: Make) -> None:
    """A new process gets a new member id without a rebalance, with the same assignment; the old process is fenced."""
    other, old = await member(), await member(instance="i1")
    assert await old.join() == 0
    await old.sync({old.id: b"1"})
    other.send_join()
    assert await other.receive_join() == errors.MEMBER_ID_REQUIRED
    for one in (old, other):
        one.send_join()
    assert [await one.receive_join() for one in (old, other)] == [0, 0]
    other.send_sync()
    assert await old.sync({old.id: b"1", other.id: b"2"}) == (0, b"1")
    assert (await other.wire.receive("SyncGroup", 5))[1].assignment == b"2"

    again = await member(instance="i1")
    assert await again.join() == 0
    assert again.generation == old.generation and again.id != old.id
    assert await again.sync() == (0, b"1")
    assert await old.heartbeat() == errors.FENCED_INSTANCE_ID
    assert await old.commit(t0=1) == [errors.FENCED_INSTANCE_ID]
    assert await other.heartbeat() == 0


async def test_a_client_that_goes_while_it_waits_to_join_holds_nobody_up(
    live: Live, wire: Wire, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A closed client's JoinGroup is dropped; the others join after its session, and no error is logged."""
    first, ghost = await member(), await member(session_ms=SHORT_SESSION_MS)
    await stable(first)
    ghost.send_join()
    assert await ghost.receive_join() == errors.MEMBER_ID_REQUIRED
    ghost.send_join()

    async def seen() -> bool:
        return len((await describe(wire, "g")).members) == 2

    await eventually("the second member waits", seen)
    assert live.broker is not None and live.broker._sockets is not None
    sockets = live.broker._sockets
    before = len(sockets)
    ghost.wire.writer.close()
    await eventually("the broker sees that it goes", lambda: len(sockets) < before)
    assert await first.join() == 0
    assert len(first.members) == 2
    assert await first.sync({first.id: b"1"}) == (0, b"1")

    async def told() -> bool:
        return await first.heartbeat() == errors.REBALANCE_IN_PROGRESS

    await eventually("the ghost is missed", told)
    assert await first.join() == 0
    assert first.members == [first.id]
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_the_cause_of_a_rebalance_is_logged_and_kept(
    live: Live, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Each rebalance has one line with the client's reason; the group keeps the last cause, and all are counted."""
    caplog.set_level(logging.INFO, "pybroker")
    one = await member()
    assert await one.join(reason="first poll") == 0
    await one.sync({one.id: b"1"})
    assert await one.leave() == 0
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("rebalance ")]
    assert len(lines) == 2
    assert f'cause="{one.id} joined: first poll"' in lines[0]
    assert f'cause="{one.id} left: done"' in lines[1]
    assert live.broker is not None and live.broker.groups is not None
    assert live.broker.groups.rebalances == {"member_joined": 1, "member_left": 1}
    group = await describe(one.wire, "g")
    assert group.last_rebalance_cause == f"{one.id} left: done"
    assert abs(group.last_rebalance_ms - time.time() * 1000) < 60_000
    old = await one.wire.call("DescribeGroups", 4, groups=["g"])
    assert old.groups[0].last_rebalance_cause == ""  # versions without tagged fields cannot carry it


async def test_long_names_of_a_client_make_short_lines(
    live: Live, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The group id, the client id and the reason have 20,000 characters each, and the line stays short."""
    caplog.set_level(logging.INFO, "pybroker")
    one = await member(group="g" * 20_000)
    assert await one.join(reason="j" * 20_000) == 0
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("rebalance ")]
    assert len(lines) == 1 and len(lines[0]) < 600


async def test_what_a_client_says_is_shown_not_obeyed(member: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Line ends and escapes in names and reasons are escaped: each event is one line of printable characters."""
    caplog.set_level(logging.INFO, "pybroker")
    one = await member("g\n2026-01-01T00:00:00.000Z ERROR pybroker forged\x1b[2J\x85\u2028")
    assert await one.join(reason="\x1b]0;title\x07\r\0") == 0
    [line] = [r.getMessage() for r in caplog.records if r.getMessage().startswith("rebalance ")]
    assert line.isprintable()
    assert r"\x1b[2J\x85\u2028" in line and r"\x1b]0;title\x07\r\x00" in line


async def test_members_keep_their_generation_over_a_restart_of_the_broker(live: Live, member: Make) -> None:
    """A heartbeat and a commit of before are valid after the restart, and so is a rejoin without changes."""
    first, second = await member(), await member()
    await stable(first, second)
    assert await first.commit(t0=10, t1=11) == [0, 0]
    await live.restart()
    first.wire, second.wire = await live.connect(), await live.connect()

    async def serves() -> bool:
        return await second.commit(t2=12) == [0]

    await eventually("the groups are loaded", serves)
    assert [await one.heartbeat() for one in (first, second)] == [0, 0]
    assert await committed(first.wire, "g") == {"t0": 10, "t1": 11, "t2": 12}
    assert await second.sync() == (0, b"1")
    generation = second.generation
    assert await second.join() == 0
    assert second.generation == generation


async def test_members_of_a_loaded_group_have_a_session_again(live: Live, member: Make) -> None:
    """If no member returns, the group is empty after a session, and keeps its offsets."""
    one = await member(session_ms=SHORT_SESSION_MS)
    await stable(one)
    assert await one.commit(t0=10) == [0]
    await live.restart()
    wire = await live.connect()

    async def empty() -> bool:
        return bool((await describe(wire, "g")).group_state == "Empty")

    await eventually("the group is empty", empty)
    assert await committed(wire, "g") == {"t0": 10}


async def test_who_waits_when_the_broker_stops_is_told_to_look_elsewhere(live: Live, wire: Wire, member: Make) -> None:
    first, second = await member(), await member()
    await stable(first)
    second.send_join()
    assert await second.receive_join() == errors.MEMBER_ID_REQUIRED
    second.send_join()

    async def waits() -> bool:
        return len((await describe(wire, "g")).members) == 2

    await eventually("the second member waits", waits)
    broker, live.broker = live.broker, None
    assert broker is not None
    _, error = await asyncio.gather(broker.stop(), second.receive_join())
    assert error == errors.NOT_COORDINATOR


async def test_a_deleted_group_is_gone(live: Live, wire: Wire, member: Make) -> None:
    """A group with members is not deleted; an empty one is deleted with its offsets, for good."""
    one = await member()
    await stable(one)
    await one.commit(t0=1)
    assert await commit(wire, "simple", {"t0": 7}) == [0]
    asked = ["g", "simple", "none"]
    results = (await wire.call("DeleteGroups", 2, groups_names=asked)).results
    assert [(r.group_id, r.error_code) for r in results] == [
        ("g", errors.NON_EMPTY_GROUP), ("simple", 0), ("none", errors.GROUP_ID_NOT_FOUND)
    ]  # fmt: skip
    await one.leave()
    assert [r.error_code for r in (await wire.call("DeleteGroups", 2, groups_names=["g"])).results] == [0]
    await live.restart()
    wire = await live.connect()

    async def loaded() -> bool:
        return (await wire.call("ListGroups", 4)).error_code == 0

    await eventually("the groups are loaded", loaded)
    assert (await wire.call("ListGroups", 4)).groups == []
    assert (await describe(wire, "g")).group_state == "Dead"


async def test_what_members_say_is_bounded(tmp_path: Path) -> None:
    """At group.metadata.memory.bytes a member joins, one byte more is refused, and a member that leaves makes room."""
    live = Live(tmp_path / "data", (*FEW, "group.metadata.memory.bytes=10000"))
    await live.start()
    wire = await live.connect()
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])

    async def join(group: str, size: int, member_id: str = "") -> Any:
        protocols = [m.JoinGroupRequest.Protocols(name="range", metadata=bytes(size - len("range")))]
        return await wire.call("JoinGroup", 1, group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
                               member_id=member_id, protocol_type="consumer", protocols=protocols)  # fmt: skip

    assert (await join("a", 10_001)).error_code == errors.GROUP_MAX_SIZE_REACHED
    first = await join("a", 10_000)
    assert first.error_code == 0
    assert (await join("b", 6)).error_code == errors.GROUP_MAX_SIZE_REACHED
    assert (await join("a", 10_000, first.member_id)).error_code == 0  # again, with the metadata that it already has
    assignment = [m.SyncGroupRequest.Assignments(member_id=first.member_id, assignment=b"x")]
    synced = await wire.call("SyncGroup", 1, group_id="a", generation_id=2, member_id=first.member_id,
                             assignments=assignment)  # fmt: skip
    assert synced.error_code == errors.GROUP_MAX_SIZE_REACHED
    assert (await wire.call("LeaveGroup", 1, group_id="a", member_id=first.member_id)).error_code == 0
    assert (await join("b", 10_000)).error_code == 0
    await live.stop()


async def test_what_a_member_said_goes_with_it(member: Make) -> None:
    """Nothing of an answered JoinGroup or SyncGroup waits for the garbage collector, as metadata may be large."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        one = await member()
        assert await one.join() == 0 and (await one.sync({one.id: b"1"}))[0] == 0
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, Joined | Synced)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def test_a_broker_that_stood_still_expires_nobody_for_that(
    member: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps over two sessions, in which the broker received no heartbeat: members get that time once more."""
    loop = asyncio.get_running_loop()
    first, second = await member(session_ms=SHORT_SESSION_MS), await member(session_ms=SHORT_SESSION_MS)
    await stable(first, second)
    later_s, now_s = 3 * SHORT_SESSION_MS / 1000, loop.time
    monkeypatch.setattr(loop, "time", lambda: now_s() + later_s)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [await first.heartbeat(), await second.heartbeat()] == [0, 0]

    async def told() -> bool:
        return await first.heartbeat() == errors.REBALANCE_IN_PROGRESS

    await eventually("one that is silent in its time is missed", told)
