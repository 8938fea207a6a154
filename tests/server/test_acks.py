"""acks=all: an answer waits for the in-sync replicas, in the native plane and in Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pybroker import core, errors
from pybroker.replication.replica import Replica
from tests.harness import eventually
from tests.server.live import Live, Wire, batch, produce_data

FOLLOWER = 2
NOW_MS = 1


class Scene(NamedTuple):
    wire: Wire
    replica: Replica
    log: core.Partition
    epoch: int

    def produce(self, timeout_ms: int, **records: bytes) -> None:
        """Send Produce with acks=all to partitions given by number: `_0=...`."""
        data = produce_data("t", {int(name[1:]): value for name, value in records.items()})
        self.wire.send("Produce", 9, acks=-1, timeout_ms=timeout_ms, topic_data=data)

    async def told(self) -> dict[int, tuple[int, int]]:
        """Receive the next answer: {partition: (error, base offset)}."""
        _, response = await self.wire.receive("Produce", 9)
        parts = response.responses[0].partition_responses
        return {part.index: (part.error_code, part.base_offset) for part in parts}

    async def appended(self, end: int) -> None:
        await eventually("it is in the log", lambda: self.log.log_end_offset == end)


@pytest.fixture(params=["native", "python"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """Two partitions; the first has a follower in the ISR."""
    live = Live(tmp_path, native_plane=request.param == "native")
    broker = await live.start()
    wire = await live.connect()
    await wire.create("t", 2)
    assert broker.replicas is not None
    replica = broker.replicas.leader("t", 0)
    epoch = replica.leader_epoch + 1
    await replica.lead(epoch, 1, followers=[FOLLOWER])
    yield Scene(wire, replica, replica.partition(), epoch)
    await live.stop()


async def test_the_isr_is_waited_for(scene: Scene) -> None:
    """A request to both partitions appends to both at once, and is answered when the follower has fetched its part."""
    scene.produce(60_000, _0=batch(b"a"), _1=batch(b"b"))
    await scene.appended(1)
    scene.replica.note_fetch(FOLLOWER, 1, scene.epoch, NOW_MS)
    assert await scene.told() == {0: (errors.NONE, 0), 1: (errors.NONE, 0)}


async def test_it_is_waited_for_no_longer_than_the_request_says(scene: Scene) -> None:
    scene.produce(50, _0=batch(b"a"), _1=batch(b"b"))
    assert await scene.told() == {0: (errors.REQUEST_TIMED_OUT, -1), 1: (errors.NONE, 0)}
    assert scene.log.log_end_offset == 1


async def test_another_leader_ends_the_wait(scene: Scene) -> None:
    scene.produce(60_000, _0=batch(b"a"))
    await scene.appended(1)
    await scene.replica.follow(FOLLOWER, scene.epoch + 1, 2)
    assert await scene.told() == {0: (errors.NOT_LEADER_OR_FOLLOWER, -1)}
    scene.produce(60_000, _0=batch(b"b"))
    assert await scene.told() == {0: (errors.NOT_LEADER_OR_FOLLOWER, -1)}
    assert scene.log.log_end_offset == 1


async def test_a_leader_that_leads_on_waits_on(scene: Scene) -> None:
    """A leader that stays leader in a new epoch, as after a follower's death, keeps requests waiting. If it refused
    them, a producer without sequence numbers would write its records twice."""
    scene.produce(60_000, _0=batch(b"a"))
    await scene.appended(1)
    await scene.replica.lead(scene.epoch + 1, 2, followers=[FOLLOWER])
    scene.replica.note_fetch(FOLLOWER, 0, scene.epoch + 1, NOW_MS)
    scene.produce(60_000, _1=batch(b"b"))
    scene.replica.note_fetch(FOLLOWER, 1, scene.epoch + 1, NOW_MS)
    assert await scene.told() == {0: (errors.NONE, 0)}
    assert await scene.told() == {1: (errors.NONE, 0)}


async def test_a_leader_that_was_cut_meanwhile_waits_no_more(scene: Scene) -> None:
    """A request is refused if the leader was truncated and leads again, as other records may be at its offsets."""
    scene.produce(60_000, _0=batch(b"a"))
    await scene.appended(1)
    await scene.replica.follow(FOLLOWER, scene.epoch + 1, 2)
    scene.log.truncate(0, leader_epoch=scene.epoch + 1)
    await scene.replica.lead(scene.epoch + 2, 3)
    assert await scene.told() == {0: (errors.NOT_LEADER_OR_FOLLOWER, -1)}


async def test_too_few_replicas_at_the_end_of_the_wait(scene: Scene) -> None:
    """The records are appended, but too few replicas are left to commit them: NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
    scene.log.min_isr = 2
    scene.produce(3000, _0=batch(b"a"))
    await scene.appended(1)
    scene.log.set_isr([0], scene.epoch, 2)
    assert await scene.told() == {0: (errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)}
