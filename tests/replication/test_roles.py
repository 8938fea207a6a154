"""A broker that follows a partition, or stops leading it, answers NOT_LEADER_OR_FOLLOWER, also to waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.errors import KafkaError
from pybroker.model import CONSUMER, DEBUGGING
from pybroker.protocol import messages as m
from pybroker.replication.replica import Replica
from tests.core.stage import STUCK_MS
from tests.harness import eventually, looked
from tests.server.live import BASE_MS, Live, Wire, batch, fetch_fields, values
from tests.wire import batch as wire_batch

NOT_LEADER, FENCED, UNKNOWN = 6, 74, 75
LATEST, EARLIEST = -1, -2
LATE_MS = BASE_MS + 60_000


@pytest.fixture(params=[True, False], ids=["native", "python"])
async def live(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data", native_plane=request.param)
    await made.start()
    yield made
    await made.stop()


async def held(live: Live, wire: Wire) -> Replica:
    """The replica of a new topic `t`."""
    await wire.create("t")
    assert live.broker is not None and live.broker.replicas is not None
    return live.broker.replicas.held("t", 0)


async def latest(
    wire: Wire, leader_epoch: int = -1, *, timestamp_ms: int = LATEST, version: int = 7, replica_id: int = -1
) -> tuple[int, int]:
    """Call ListOffsets; return (error code, offset)."""
    kind = m.ListOffsetsRequest.Topics
    asked = kind.Partitions(partition_index=0, timestamp=timestamp_ms, current_leader_epoch=leader_epoch)
    topics = [kind(name="t", partitions=[asked])]
    answer = await wire.call("ListOffsets", version, replica_id=replica_id, topics=topics)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset


async def end_of_epoch(wire: Wire, leader_epoch: int) -> int:
    """Call OffsetForLeaderEpoch; return its error code."""
    kind = m.OffsetForLeaderEpochRequest.Topics
    asked = kind.Partitions(partition=0, current_leader_epoch=leader_epoch, leader_epoch=0)
    answer = await wire.call("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[kind(topic="t", partitions=[asked])])
    return int(answer.topics[0].partitions[0].error_code)


async def test_a_follower_answers_who_leads(live: Live) -> None:
    """A follower answers Produce and Fetch with its leader and epoch, without records, and appends nothing."""
    wire = await live.connect()
    replica = await held(live, wire)
    assert (await wire.produce("t", batch(b"a"))).error_code == 0
    epoch = replica.partition().leader_epoch
    await replica.follow(7, epoch + 1, 100)
    produced = await wire.produce("t", batch(b"b"), version=12)
    fetched = await wire.fetch("t", 0, version=12)
    for answer in (produced, fetched):
        assert answer.error_code == NOT_LEADER
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (7, epoch + 1)
    assert len(fetched.records) == 0
    assert await latest(wire) == (NOT_LEADER, -1)
    assert [await latest(wire, epoch + n) for n in (0, 1, 2)] == [(FENCED, -1), (NOT_LEADER, -1), (UNKNOWN, -1)]
    assert [await end_of_epoch(wire, epoch + n) for n in (0, 1, 2)] == [FENCED, NOT_LEADER, UNKNOWN]
    assert replica.partition().log_end_offset == 1
    await replica.lead(epoch + 2, 101)
    assert (await wire.produce("t", batch(b"b"))).base_offset == 1
    assert await latest(wire, epoch + 2) == (0, 2)


async def test_a_tool_that_compares_replicas_reads_each(live: Live) -> None:
    """A follower answers a replica comparison tool (replica id -2) up to its log end, also uncommitted records.

    This holds for Fetch, ListOffsets and DescribeProducers; an outdated leader epoch is refused.
    """
    wire = await live.connect()
    replica = await held(live, wire)
    assert (await wire.produce("t", batch(b"a"))).error_code == 0
    epoch = replica.partition().leader_epoch + 1
    await replica.follow(7, epoch, 100)
    records = wire_batch([b"b"], base_offset=1, base_ms=LATE_MS, producer_id=5, producer_epoch=0, sequence=0)
    sent = bytearray(records)
    sent[12:16] = epoch.to_bytes(4, "big")
    replica.append_copied(bytes(sent), epoch, 1, 0)
    fetched = await wire.fetch("t", 0, replica_id=DEBUGGING)
    assert (fetched.error_code, fetched.high_watermark, values(fetched.records)) == (0, 1, [b"a", b"b"])
    assert await latest(wire, replica_id=DEBUGGING) == (0, 2)
    assert await latest(wire, timestamp_ms=EARLIEST, replica_id=DEBUGGING) == (0, 0)
    assert await latest(wire, epoch - 1, replica_id=DEBUGGING) == (FENCED, -1)
    asked = [m.DescribeProducersRequest.Topics(name="t", partition_indexes=[0])]
    [described] = (await wire.call("DescribeProducers", 0, topics=asked)).topics[0].partitions
    assert (described.error_code, [p.producer_id for p in described.active_producers]) == (0, [5])
    await replica.lead(epoch + 1, 101, followers=[7])
    assert await latest(wire, replica_id=DEBUGGING) == (0, 2)
    fetched = await wire.fetch("t", 0, replica_id=DEBUGGING)
    assert (fetched.high_watermark, values(fetched.records)) == (1, [b"a", b"b"]), "also uncommitted records"


@pytest.mark.parametrize("version", [4, 12, 13, 14, 15, 16, 17])
async def test_a_tool_that_compares_replicas_fetches_in_each_version(live: Live, version: int) -> None:
    """From version 15 on, replica id -2 is read from the replica state, and is no consumer there either.

    A consumer would have to ask the leader, and would see only committed records.
    """
    wire = await live.connect()
    replica = await held(live, wire)
    topic = replica.topic_id if version >= 13 else "t"

    async def fetched(replica_id: int) -> tuple[int, list[bytes | None]]:
        by: dict[str, Any] = {"replica_id": replica_id}
        if version >= 15:
            by = {"replica_state": m.FetchRequest.ReplicaState(replica_id=replica_id)}
        response = await wire.call("Fetch", version, **fetch_fields(topic, 0, **by))
        [found] = response.responses[0].partitions
        return found.error_code, values(found.records or b"")

    await replica.lead(50, 100, followers=[7])
    assert (await wire.produce("t", batch(b"a"), acks=1)).error_code == 0
    assert await fetched(DEBUGGING) == (0, [b"a"])
    assert await fetched(CONSUMER) == (0, [])
    await replica.follow(7, 51, 101)
    assert await fetched(DEBUGGING) == (0, [b"a"])
    assert await fetched(CONSUMER) == (NOT_LEADER, [])


async def test_the_address_of_the_leader_is_that_of_the_listener(live: Live) -> None:
    """A leader's address is that of the client's listener, here with a broker that follows itself."""
    wire = await live.connect()
    replica = await held(live, wire)
    assert live.broker is not None
    await replica.follow(live.broker.broker_id, 50, 100)
    wire.send("Produce", 12, acks=1, timeout_ms=1, topic_data=[])
    await wire.receive("Produce", 12)
    kind = m.ProduceRequest.TopicData
    data = [kind(name="t", partition_data=[kind.PartitionData(index=0, records=batch(b"x"))])]
    produced = await wire.call("Produce", 12, acks=1, timeout_ms=1000, topic_data=data)
    fetched = await wire.call("Fetch", 16, **fetch_fields(replica.topic_id, 0))
    for answer in (produced, fetched):
        assert [(n.node_id, n.port) for n in answer.node_endpoints] == [(live.broker.broker_id, live.broker.port)]


async def test_who_waits_is_told_that_the_leader_is_another(live: Live) -> None:
    """A parked Fetch and a wait for the high watermark fail when the leader changes."""
    wire = await live.connect()
    replica = await held(live, wire)
    await replica.lead(50, 100, followers=[7])
    assert (await wire.produce("t", batch(b"a"), acks=1)).error_code == 0
    committed = asyncio.create_task(replica.committed(1))
    fetch: asyncio.Task[Any] = asyncio.create_task(wire.fetch("t", 0, max_wait_ms=60_000))
    await live.one_waits(at_least=2)
    assert not committed.done() and not fetch.done()
    await replica.follow(7, 51, 101)
    assert (await fetch).error_code == NOT_LEADER
    with pytest.raises(KafkaError) as refused:
        await committed
    assert refused.value.code == errors.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_that_fetches_commits_what_a_leader_wrote(live: Live) -> None:
    """A follower's Fetch commits the leader's records: consumers see them, and waits end."""
    wire = await live.connect()
    replica = await held(live, wire)
    await replica.lead(50, 100, followers=[7])
    assert (await wire.produce("t", batch(b"a"), acks=1)).error_code == 0
    assert (await wire.fetch("t", 0)).high_watermark == 0
    replica.partition().note_fetch(7, 1, now_ms=0)
    await asyncio.wait_for(replica.committed(1), 10)
    found = await wire.fetch("t", 0)
    assert found.high_watermark == 1 and len(found.records) > 0


async def test_a_role_of_an_older_epoch_is_refused(live: Live) -> None:
    wire = await live.connect()
    replica = await held(live, wire)
    await replica.lead(50, 100)
    for change in (replica.lead(49, 200), replica.follow(7, 49, 200)):
        with pytest.raises(core.LogError) as refused:
            await change
        assert refused.value.code == FENCED
    assert replica.partition().role == ("leader", -1, 50, 100)


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_a_role_waits_for_an_append_that_is_at_the_disk(live: Live, role: str) -> None:
    """A new role waits for an append that is writing, which belongs to the old role; the event loop does not wait."""
    wire = await live.connect()
    replica = await held(live, wire)
    assert live.broker is not None and live.broker.replicas is not None
    log, disk = replica.partition(), live.broker.replicas._core
    disk.arm("segment.write", "sleep", STUCK_MS)
    appending = asyncio.create_task(asyncio.to_thread(log.append, batch(b"a"), now_ms=0))
    await eventually("the append is writing", lambda: disk.sleeping)
    taking = asyncio.create_task(replica.lead(50, 100) if role == "leader" else replica.follow(7, 50, 100))
    await looked()
    assert disk.sleeping and not taking.done()
    disk.disarm()
    await taking
    await appending
    assert (log.role.kind, log.leader_epoch, log.log_end_offset) == (role, 50, 1)
    assert log.epochs()[0][0] < 50


@pytest.mark.parametrize("later", [1, 0], ids=["in the next epoch", "in the same epoch, as ZooKeeper was rolled back"])
async def test_a_new_leader_tells_no_end_that_is_less_than_was_told_before(live: Live, later: int) -> None:
    """A new leader answers no end below one that an earlier leader answered.

    Its high watermark may lag, so it answers ListOffsets once its followers have what it has (KIP-207).
    """
    wire = await live.connect()
    replica = await held(live, wire)
    assert (await wire.produce("t", batch(b"a"))).error_code == 0
    epoch = replica.partition().leader_epoch + 1
    await replica.follow(7, epoch, 100)
    sent = bytearray(wire_batch([b"b"], base_offset=1, base_ms=LATE_MS))
    sent[12:16] = epoch.to_bytes(4, "big")
    replica.append_copied(bytes(sent), epoch, 1, 0)
    await replica.lead(epoch + later, 101, [7])
    assert (replica.partition().high_watermark, replica.partition().log_end_offset) == (1, 2)
    for timestamp in (LATEST, LATE_MS):
        assert await latest(wire, timestamp_ms=timestamp) == (errors.OFFSET_NOT_AVAILABLE, -1)
        assert await latest(wire, timestamp_ms=timestamp, version=4) == (errors.LEADER_NOT_AVAILABLE, -1)
        assert (await latest(wire, timestamp_ms=timestamp, replica_id=7))[0] == errors.NONE
    assert await latest(wire, timestamp_ms=EARLIEST) == (0, 0)
    assert await latest(wire, timestamp_ms=BASE_MS) == (0, 0)
    replica.note_fetch(7, 2, epoch + later, 0)
    assert await latest(wire) == (0, 2)
    assert await latest(wire, timestamp_ms=LATE_MS) == (0, 1)
