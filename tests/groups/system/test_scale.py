"""A hundred groups of ten members each, in bounded time and memory, and the rate of commits.

The rates are printed (pytest -s, or the captured output of a failure); the limits leave room for a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.groups.members import Member, stable
from tests.harness import HOST, BrokerProcess
from tests.server.live import KEYS, Wire

GROUPS, MEMBERS = 100, 10
JOIN_SECONDS_MAX = 60.0
BYTES_A_MEMBER_MAX = 64 << 10
COMMITS, IN_FLIGHT = 10_000, 100
COMMITS_A_SECOND_MIN = 1_000  # for the slowest shared machine; bench and this output have the real rate


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def connect(port: int) -> Wire:
    return Wire(*await asyncio.open_connection(HOST, port, limit=1 << 24))


def started(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker(sets={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 10})


async def test_a_thousand_members_in_a_hundred_groups(start_broker: Callable[..., BrokerProcess]) -> None:
    """All groups form at the same time and become stable, and the memory of a member is bounded."""
    broker = started(start_broker)
    first = await connect(broker.port)
    await first.create("t", 4)
    groups = [f"g{n}" for n in range(GROUPS)]
    await first.call("FindCoordinator", 4, key_type=0, coordinator_keys=groups)
    assert broker.process is not None
    before = rss(broker.process.pid)
    begun = time.perf_counter()
    members = {g: [Member(await connect(broker.port), g, session_ms=60_000) for _ in range(MEMBERS)] for g in groups}
    await asyncio.gather(*(stable(*team) for team in members.values()))
    took = time.perf_counter() - begun
    cost = (rss(broker.process.pid) - before) / (GROUPS * MEMBERS)
    joins = GROUPS * (2 + 2 * MEMBERS)  # the requests that `stable` sends
    print(f"\n{GROUPS * MEMBERS} members in {GROUPS} groups: stable in {took:.2f} s, {joins / took:.0f} joins/s, "
          f"{cost / 1024:.1f} KiB a member")  # fmt: skip
    assert took < JOIN_SECONDS_MAX
    assert cost < BYTES_A_MEMBER_MAX
    assert {await team[-1].heartbeat() for team in members.values()} == {errors.NONE}
    for team in members.values():
        for member in team:
            member.wire.writer.close()
    first.writer.close()


async def test_commits_a_second(start_broker: Callable[..., BrokerProcess]) -> None:
    """Each commit has one partition, from a few connections that keep a window of requests open."""
    broker = started(start_broker)
    wires = [await connect(broker.port) for _ in range(4)]
    await wires[0].create("t", 4)
    await wires[0].call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    kind = m.OffsetCommitRequest.Topics
    topics = [kind(name="t", partitions=[kind.Partitions(partition_index=0, committed_offset=42)])]
    request = m.OffsetCommitRequest(group_id="g", topics=topics)
    frame = codec.encode_request(KEYS["OffsetCommit"], 8, 1, "c", request)

    async def commit(wire: Wire, times: int) -> None:
        sent = 0
        for done in range(times):
            while sent < min(times, done + IN_FLIGHT):
                wire.send_frame(frame)
                sent += 1
            answer = await wire.frame()
            if done == 0:
                _, response = codec.decode_response(KEYS["OffsetCommit"], 8, answer)
                assert response.topics[0].partitions[0].error_code == 0

    begun = time.perf_counter()
    await asyncio.gather(*(commit(wire, COMMITS // len(wires)) for wire in wires))
    rate = COMMITS / (time.perf_counter() - begun)
    print(f"\n{COMMITS} commits through {len(wires)} sockets: {rate:.0f}/s")
    assert rate > COMMITS_A_SECOND_MIN
    for wire in wires:
        wire.writer.close()
