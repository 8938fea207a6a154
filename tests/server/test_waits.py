"""No client waits for another partition's disk: while a request blocks in a file call, all others are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.replication.replica import Replica
from tests.groups.members import Member, commit
from tests.harness import eventually
from tests.server.live import BASE_MS, Live, Wire, batch

STUCK_MS = 60_000
"""The longest sleep of a file call in ms; it is woken once the other clients were served."""
ROUNDS = 5
SETS = ["num.network.threads=2", "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1"]
SLOW, RULES, SYNCED, QUICK = "slow", "slow-rules", "slow-synced", "quick"


class Scene:
    """A broker with two reactors: `slow` sends the requests that block, on one; `others` are clients of the other."""

    def __init__(self, live: Live, slow: Wire, others: Wire, member: Member) -> None:
        self.live, self.slow, self.others, self.member = live, slow, others, member
        assert live.broker is not None and live.broker.replicas is not None
        self.replicas = live.broker.replicas
        self.core = self.replicas._core

    async def call(self, name: str, version: int, **fields: Any) -> Any:
        return await self.slow.call(name, version, **fields)

    async def produce(self, topic: str) -> Any:
        return await self.slow.produce(topic, batch(b"v"))

    async def diverted_fetch(self) -> Any:
        """Fetch through Python."""
        self.replicas.divert(True)
        try:
            return await self.slow.fetch(SLOW, 0)
        finally:
            self.replicas.divert(False)

    async def upkeep(self, work: str, *args: int) -> None:
        """Run the work of a chore, on its thread."""
        replica = self.replicas.get(SLOW, 0)
        assert replica is not None and replica.log is not None
        await asyncio.to_thread(getattr(replica.log, work), *args)

    async def probe(self) -> None:
        """Send each request of the other clients once."""
        assert (await self.others.produce(QUICK, batch(b"v"))).error_code == 0
        assert (await self.others.fetch(QUICK, 0)).error_code == 0
        await self.others.call("Metadata", 12, topics=None)
        assert await self.member.heartbeat() == 0
        kind = m.ListOffsetsRequest.Topics
        asked = [kind(name=SLOW, partitions=[kind.Partitions(partition_index=0, timestamp=at)]) for at in (-1, -2)]
        for topic in asked:
            answer = await self.others.call("ListOffsets", 5, replica_id=-1, topics=[topic])
            assert answer.topics[0].partitions[0].error_code == 0


class Case(NamedTuple):
    point: str
    what: str
    work: Callable[[Scene], Awaitable[Any]]
    under: str = "slow"


def asked(name: str, version: int, **fields: Any) -> Callable[[Scene], Awaitable[Any]]:
    return lambda scene: scene.call(name, version, **fields)


def by_time(timestamp: int) -> dict[str, Any]:
    kind = m.ListOffsetsRequest.Topics
    return {
        "replica_id": -1,
        "topics": [kind(name=SLOW, partitions=[kind.Partitions(partition_index=0, timestamp=timestamp)])],
    }


def new_topic(name: str) -> dict[str, Any]:
    return {
        "topics": [m.CreateTopicsRequest.Topics(name=name, num_partitions=1, replication_factor=1)],
        "timeout_ms": 60_000,
    }


def cut(offset: int) -> dict[str, Any]:
    kind = m.DeleteRecordsRequest.Topics
    parts = [kind.Partitions(partition_index=0, offset=offset)]
    return {"topics": [kind(name=SLOW, partitions=parts)], "timeout_ms": 60_000}


CASES = [
    Case("segment.read", "ListOffsets by time", asked("ListOffsets", 7, **by_time(BASE_MS))),
    Case("segment.read", "ListOffsets of the largest time", asked("ListOffsets", 7, **by_time(-3))),
    Case("segment.read", "Fetch in Python", lambda scene: scene.diverted_fetch()),
    Case("segment.write", "Produce in core", lambda scene: scene.produce(SLOW)),
    Case("append.after", "Produce in core", lambda scene: scene.produce(SLOW)),
    Case("segment.write", "Produce in Python", lambda scene: scene.produce(RULES)),
    Case("segment.sync", "Produce in core that waits for a flush", lambda scene: scene.produce(SYNCED)),
    Case("segment.write", "OffsetCommit", lambda scene: commit(scene.slow, "simple", {"t0": 1}), "__consumer_offsets"),
    *(
        Case(point, "CreateTopics", asked("CreateTopics", 7, **new_topic(f"slow-{point}")))
        for point in ("partition.create", "metadata.write", "metadata.rename", "segment.create", "roll.before")
    ),
    *(
        Case(point, "DeleteRecords", asked("DeleteRecords", 2, **cut(offset)), "log-start-offset-checkpoint")
        for offset, point in enumerate(("checkpoint.write", "checkpoint.sync", "checkpoint.rename"), 1)
    ),
    Case("segment.sync", "a flush", lambda scene: scene.upkeep("flush")),
    Case("partition.rename", "DeleteTopics", asked("DeleteTopics", 5, topic_names=[RULES], timeout_ms=60_000)),
]


async def stuck(scene: Scene, case: Case, stuck_ms: int = STUCK_MS) -> str:
    """Block a request in a file call and serve other clients; return the problem, or an empty string."""
    scene.core.arm(case.point, "sleep", stuck_ms, times=1000, under=case.under)
    task = asyncio.ensure_future(case.work(scene))
    try:
        async with asyncio.timeout(STUCK_MS / 2000):
            await eventually("it stands still, or is over", lambda: scene.core.sleeping or task.done())
            if not scene.core.sleeping:
                return f"{case.what} was over before anybody was served, or does not come to {case.point}"
            for _ in range(ROUNDS):
                await scene.probe()
        return "" if scene.core.sleeping else f"everybody waits for {case.what} at {case.point}"
    except TimeoutError:
        return f"somebody waits for {case.what} at {case.point}"
    finally:
        scene.core.disarm()
        await task


@contextlib.asynccontextmanager
async def scene_in(home: Path) -> AsyncIterator[Scene]:
    live = Live(home, SETS)
    await live.start()
    try:
        slow, others, _, beating = [await live.connect() for _ in range(4)]  # reactors take new connections in turn
        await slow.create(SLOW, file_delete_delay_ms="0")
        await slow.create(RULES, compression_type="gzip")
        await slow.create(SYNCED, flush_messages="1")
        await slow.create(QUICK)
        await slow.create("t")
        for _ in range(5):
            await slow.produce(SLOW, batch(b"v"))
        member = Member(beating, "g")
        await beating.call("FindCoordinator", 3, key="g", key_type=0)

        async def joined() -> bool:
            error = await member.join()
            assert error in (0, errors.COORDINATOR_LOAD_IN_PROGRESS)
            return error == 0

        await eventually("it joined", joined)
        assert (await member.sync({}))[0] == 0
        yield Scene(live, slow, others, member)
    finally:
        await live.stop()


async def test_everybody_else_is_served(tmp_path: Path) -> None:
    """One request of each kind blocks in a file call: other partitions are produced to and fetched, heartbeats and
    Metadata are answered, and so are the ends of the blocked log."""
    async with scene_in(tmp_path) as scene:
        problems = [problem for case in CASES if (problem := await stuck(scene, case))]
    assert not problems


async def test_a_request_that_holds_the_event_loop_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With file calls on the event loop, the check above finds a problem."""

    async def on_the_loop(self: Replica, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    async with scene_in(tmp_path) as scene:
        monkeypatch.setattr(Replica, "at_disk", on_the_loop)
        assert await stuck(scene, CASES[0], stuck_ms=300)
