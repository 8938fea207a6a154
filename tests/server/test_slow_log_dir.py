"""A log dir whose disk blocks delays no flush, checkpoint or deletion in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.protocol import messages as m
from pybroker.replication.replicas import Replicas
from tests.harness import eventually
from tests.server.live import Live, Wire, batch

STUCK_MS = 60_000
PATIENCE_S = 20
SETS = ["log.flush.scheduler.interval.ms=20", "log.cleaner.enable=false"]


class Disks:
    """A broker with two log dirs and a topic in each: a failpoint can block the log dir of `slow`."""

    def __init__(self, live: Live, wire: Wire) -> None:
        self.live, self.wire = live, wire
        assert live.broker is not None and live.broker.replicas is not None
        self.replicas: Replicas = live.broker.replicas
        self.core = self.replicas._core
        self.slow = self.quick = ""

    async def make(self, **config: str) -> None:
        for name in ("a", "b"):
            assert (await self.wire.create(name, **config)).error_code == 0
        names = ("a", "b") if (self.live.data_dir / "two" / "a-0").exists() else ("b", "a")
        self.slow, self.quick = names

    async def stick(self, point: str) -> None:
        """Block the slow topic's log dir at this failpoint, and wait until a call is blocked there."""
        self.core.arm(point, "sleep", STUCK_MS, times=1000, under="/two/")
        await eventually("something sleeps", lambda: self.core.sleeping > 0)

    def recovery_point(self, topic: str) -> int:
        replica = self.replicas.get(topic, 0)
        assert replica is not None and replica.log is not None
        return replica.log.recovery_point


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[Disks]:
    live = Live(tmp_path, [f"log.dirs={tmp_path / 'one'},{tmp_path / 'two'}", *SETS])
    await live.start()
    made = Disks(live, await live.connect())
    yield made
    made.core.disarm()
    await live.stop()


async def test_flushes_by_interval(disks: Disks) -> None:
    """flush.ms of a topic holds while the disk of another topic is blocked."""
    await disks.make(flush_ms="20")
    await disks.wire.produce(disks.slow, batch(b"v"))
    await disks.stick("segment.sync")
    for end in range(1, 4):
        await disks.wire.produce(disks.quick, batch(b"v"))
        await eventually("it is flushed", lambda end=end: disks.recovery_point(disks.quick) == end)
    assert disks.core.sleeping and disks.recovery_point(disks.slow) == 0


def cut(topic: str) -> dict[str, Any]:
    kind = m.DeleteRecordsRequest.Topics
    parts = [kind.Partitions(partition_index=0, offset=-1)]
    return {"topics": [kind(name=topic, partitions=parts)], "timeout_ms": 60_000}


async def test_records_and_topics_that_are_deleted(disks: Disks) -> None:
    """DeleteRecords and DeleteTopics in one log dir succeed while another log dir is blocked in its checkpoint."""
    await disks.make()
    for topic in (disks.slow, disks.quick):
        await disks.wire.produce(topic, batch(b"v"))
    other = await disks.live.connect()
    stuck = asyncio.create_task(other.call("DeleteRecords", 2, **cut(disks.slow)))
    await disks.stick("checkpoint.write")
    answer = await disks.wire.call("DeleteRecords", 2, **cut(disks.quick))
    assert [p.low_watermark for p in answer.topics[0].partitions] == [1]
    answer = await disks.wire.call("DeleteTopics", 5, topic_names=[disks.quick], timeout_ms=60_000)
    assert answer.responses[0].error_code == 0
    assert disks.core.sleeping and not stuck.done()
    disks.core.disarm()
    assert [p.low_watermark for p in (await stuck).topics[0].partitions] == [1]
