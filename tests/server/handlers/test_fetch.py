"""Fetch, without sockets: positions that can and cannot be read, size limits, and when the answer is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker import errors
from pybroker.clock import monotonic_ms
from pybroker.protocol import messages as m
from pybroker.replication.proof import Proof
from pybroker.server.api.handlers.fetch import Fetch, Followers
from tests.harness import eventually
from tests.server.handlers.desk import CALLER, ELSEWHERE, HERE, Desk
from tests.server.live import batch, fetch_fields, values

FETCH = 1
TOPICS = m.FetchRequest.Topics
A, B = batch(b"a" * 100), batch(b"b" * 100)


async def stock(desk: Desk, topic: str, *partitions: tuple[bytes, ...], **config: str) -> bytes:
    """Create a topic with these batches in its partitions; return its id."""
    made = await desk.topic(topic, len(partitions), **config)
    for index, batches in enumerate(partitions):
        for each in batches:
            await desk.replica(topic, index).append(each, 1)
    return made


async def fetch(desk: Desk, topic: str | bytes, *offsets: int, version: int = 12, **how: Any) -> list[Any]:
    answer = await desk.ask("Fetch", version, **fetch_fields(topic, *offsets, **how))
    assert answer.error_code == 0
    return [partition for topic in answer.responses for partition in topic.partitions]


async def test_each_partition_from_its_offset(desk: Desk) -> None:
    topic_id = await stock(desk, "t", (A, B), (B,), ())
    for named, version in (("t", 12), (topic_id, 13)):
        found = await fetch(desk, named, 1, 0, 0, version=version)
        assert [values(p.records) for p in found] == [[b"b" * 100], [b"b" * 100], []]
        assert [(p.error_code, p.high_watermark, p.log_start_offset) for p in found] == [
            (0, 2, 0),
            (0, 1, 0),
            (0, 0, 0),
        ]


@pytest.mark.parametrize(
    ("offset", "how", "code"),
    [
        (-1, {}, errors.OFFSET_OUT_OF_RANGE),
        (2, {}, errors.OFFSET_OUT_OF_RANGE),
        (0, {"current_leader_epoch": 9}, errors.UNKNOWN_LEADER_EPOCH),
        (0, {"replica_id": ELSEWHERE}, errors.NOT_LEADER_OR_FOLLOWER),
        (0, {"replica_id": ELSEWHERE, "current_leader_epoch": 0}, errors.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_what_cannot_be_read(desk: Desk, offset: int, how: dict[str, int], code: int) -> None:
    """An invalid Fetch is answered at once, without records, however long the client would wait."""
    await stock(desk, "t", (A,))
    async with asyncio.timeout(10):
        [found] = await fetch(desk, "t", offset, max_wait_ms=60_000, min_bytes=1 << 20, **how)
    assert (found.error_code, found.high_watermark, bytes(found.records)) == (code, -1, b"")


async def test_partitions_that_are_not_there(desk: Desk) -> None:
    await stock(desk, "t", (A,))
    await desk.topic("far", at=ELSEWHERE)
    sound, unknown = await fetch(desk, "t", 0, 0)
    assert (sound.error_code, unknown.error_code) == (0, errors.UNKNOWN_TOPIC_OR_PARTITION)
    [found] = await fetch(desk, "none", 0)
    assert found.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    [found] = await fetch(desk, b"x" * 16, 0, version=13)
    assert found.error_code == errors.UNKNOWN_TOPIC_ID
    [found] = await fetch(desk, "far", 0)
    leader = found.current_leader
    assert (found.error_code, leader.leader_id) == (errors.NOT_LEADER_OR_FOLLOWER, ELSEWHERE)


async def test_how_much_an_answer_has(desk: Desk) -> None:
    """The answer has at least one batch, from the first partition with data, and as many more as fit."""
    await stock(desk, "t", (), (A, B), (A,))
    size = len(A)

    async def sizes(**how: int) -> list[int]:
        return [len(p.records) // size for p in await fetch(desk, "t", 0, 0, 0, **how)]

    assert await sizes() == [0, 2, 1]
    assert await sizes(max_bytes=1) == await sizes(max_bytes=0) == [0, 1, 0]
    assert await sizes(max_bytes=size * 2 - 1) == [0, 1, 0]
    assert await sizes(max_bytes=size * 3 - 1) == [0, 2, 0]
    assert await sizes(partition_max_bytes=size * 2 - 1) == [0, 1, 1]
    assert await sizes(partition_max_bytes=1) == [0, 1, 0]


async def test_a_wait_ends_with_enough_or_with_its_time(desk: Desk) -> None:
    await stock(desk, "t", (A,))
    waiting = asyncio.create_task(fetch(desk, "t", 0, max_wait_ms=60_000, min_bytes=len(A) * 3))
    replica = desk.replica("t")
    for _ in range(2):
        await eventually("it waits", lambda: replica.waited_for, every_s=0)
        assert not waiting.done()
        await replica.append(B, 1)
    [found] = await asyncio.wait_for(waiting, 10)
    assert len(found.records) == len(A) * 3 and not replica.waited_for
    [found] = await fetch(desk, "t", 3, max_wait_ms=1)
    assert (found.error_code, bytes(found.records)) == (0, b"")


async def test_what_is_throttled_waits_outside_the_isr(desk: Desk) -> None:
    """A throttled follower outside the ISR gets no records until the quota allows them, as in the native plane
    (tests/core/test_replication_throttle.py); a follower in the ISR is not throttled."""
    await stock(desk, "t", (A, B), leader_replication_throttled_replicas="*")
    replica, bucket = desk.replica("t"), desk.replicas.throttles.leader
    followers, proof = Followers(CALLER.listener, lambda *_: None), Proof(desk.replicas, desk.stage.config)
    desk.table[FETCH] = desk.table[FETCH]._replace(
        by=Fetch(desk.replicas, desk.stage.metadata, 1 << 20, followers, proof)
    )

    async def given(**how: int) -> int:
        [found] = await fetch(desk, "t", 1, replica_id=ELSEWHERE, **how)
        assert (found.error_code, found.log_start_offset) == (0, 0)
        return len(found.records)

    await replica.lead(1, 1, [ELSEWHERE], [HERE])
    bucket.set_limit(1000)
    bucket.record(5_000, monotonic_ms())
    assert await given() == 0
    assert replica.partition().followers[0].log_end_offset == 1, "the fetch position is recorded even so"
    async with asyncio.timeout(60):
        assert await given(max_wait_ms=60_000) == len(B)
    await replica.lead(2, 2, [ELSEWHERE], [HERE, ELSEWHERE])
    bucket.record(60_000, monotonic_ms())
    assert await given() == len(B), "a follower in the ISR does not wait"
    bucket.set_limit(1 << 60)
    async with asyncio.timeout(10):
        waiting = asyncio.create_task(given(max_wait_ms=60_000, min_bytes=len(B) * 2))
        await eventually("it waits", lambda: replica.waited_for, every_s=0)
        await replica.append(B, 1)
        assert await waiting == len(B) * 2


async def test_a_log_that_diverged(desk: Desk) -> None:
    """A diverged client gets the end of its last fetched epoch (KIP-595), or none if the leader has no older epoch."""
    await stock(desk, "t", (A, B))
    log = desk.replica("t").partition()
    log.become_leader(5, 1)
    await desk.replica("t").append(B, 1)
    [same] = await fetch(desk, "t", 3, last_fetched_epoch=5)
    assert same.error_code == 0 and same.diverging_epoch is None
    [cut] = await fetch(desk, "t", 3, last_fetched_epoch=0, max_wait_ms=60_000)
    assert (cut.diverging_epoch.epoch, cut.diverging_epoch.end_offset, bytes(cut.records)) == (0, 2, b"")
    [later] = await fetch(desk, "t", 3, last_fetched_epoch=4)
    assert (later.diverging_epoch.epoch, later.diverging_epoch.end_offset) == (0, 2)


async def test_old_clients_get_no_zstd(desk: Desk) -> None:
    await stock(desk, "t", (), compression_type="zstd")
    for version, code in ((9, errors.UNSUPPORTED_COMPRESSION_TYPE), (10, 0)):
        [found] = await fetch(desk, "t", 0, version=version)
        assert found.error_code == code


async def test_sessions_are_the_planes(desk: Desk) -> None:
    """Python's Fetch handler offers no fetch sessions: a new one gets session id 0, a known one is not found."""
    await stock(desk, "t", (A,))
    full = await desk.ask("Fetch", 12, session_epoch=0, **fetch_fields("t", 0))
    assert (full.error_code, full.session_id, len(full.responses)) == (0, 0, 1)
    for number, epoch in ((99, 1), (0, 1), (99, -2)):
        answer = await desk.ask("Fetch", 12, session_id=number, session_epoch=epoch, **fetch_fields("t", 0))
        assert (answer.error_code, answer.responses) == (errors.FETCH_SESSION_ID_NOT_FOUND, [])


async def test_a_request_without_partitions(desk: Desk) -> None:
    assert (await desk.ask("Fetch", 12, topics=[], max_wait_ms=0, min_bytes=1, max_bytes=1)).responses == []
    named = [TOPICS(topic="t", partitions=[])]
    assert (await desk.ask("Fetch", 12, topics=named, max_wait_ms=0, min_bytes=1, max_bytes=1)).responses == []
