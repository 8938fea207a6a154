"""Waiting for a replica's high watermark ends at once, when it moves there, or when the replica is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.replication.replica import Replica
from tests.server.live import Live, Wire, batch


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data")
    await made.start()
    yield made
    await made.stop()


async def replica_of(live: Live, wire: Wire) -> Replica:
    await wire.create("t")
    assert live.broker is not None and live.broker.replicas is not None
    return live.broker.replicas.leader("t", 0)


async def test_what_is_committed_is_not_waited_for(live: Live) -> None:
    """A wait for a committed offset returns without a turn of the event loop."""
    wire = await live.connect()
    replica = await replica_of(live, wire)
    assert (await wire.produce("t", batch(b"a"))).base_offset == 0
    with pytest.raises(StopIteration):
        replica.committed(1).send(None)


@pytest.mark.parametrize("by", ["the plane", "Python"])
async def test_an_append_wakes_who_waits_for_it_and_not_who_waits_for_more(live: Live, by: str) -> None:
    wire = await live.connect()
    replica = await replica_of(live, wire)
    first, second = (asyncio.create_task(replica.committed(offset)) for offset in (1, 2))
    for done in (first, second):
        await asyncio.sleep(0)
        if by == "Python":
            await replica.append(batch(b"a"), 0)
        else:
            await wire.produce("t", batch(b"a"))
        await asyncio.wait_for(done, 10)
        assert second.done() is (done is second)
    assert not replica.waited_for


async def test_a_replica_that_goes_tells_who_waits(live: Live) -> None:
    wire = await live.connect()
    replica = await replica_of(live, wire)
    waiting = asyncio.create_task(replica.committed(1))
    await asyncio.sleep(0)
    await wire.call("DeleteTopics", 5, topic_names=["t"], timeout_ms=5000)
    with pytest.raises(KafkaError) as refused:
        await waiting
    assert refused.value.code == errors.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_that_leads_on_commits_what_it_wrote_before(live: Live) -> None:
    """A wait continues if the same leader leads on in another leader epoch, as after a follower's death."""
    wire = await live.connect()
    replica = await replica_of(live, wire)
    assert replica.log is not None
    epoch = replica.log.role.leader_epoch
    waiting = asyncio.create_task(replica.committed(1, epoch))
    await asyncio.sleep(0)
    await replica.lead(epoch + 1, 1)
    await wire.produce("t", batch(b"a"))
    await asyncio.wait_for(waiting, 10)
    await replica.committed(1, epoch)


async def test_what_another_leader_commits_is_another_thing(live: Live) -> None:
    """A wait fails if another leader led in between, even if the offset is reached later."""
    wire = await live.connect()
    replica = await replica_of(live, wire)
    assert replica.log is not None
    epoch = replica.log.role.leader_epoch
    waiting = asyncio.create_task(replica.committed(1, epoch))
    await asyncio.sleep(0)
    await replica.follow(7, epoch + 1, 1)
    await asyncio.wait({waiting}, timeout=10)
    await replica.lead(epoch + 2, 2)
    await wire.produce("t", batch(b"a"))
    again = replica.committed(1, epoch)
    for work, code in ((waiting, errors.NOT_LEADER_OR_FOLLOWER), (again, errors.FENCED_LEADER_EPOCH)):
        with pytest.raises(KafkaError) as refused:
            await asyncio.wait_for(work, 10)
        assert refused.value.code == code
    await replica.committed(1, epoch + 2)
