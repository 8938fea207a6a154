"""A leader whose lease has lapsed, without sockets: it answers only what any leader would answer the same way, and what
its followers confirm."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.clock import monotonic_ms
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.protocol import messages as m
from pybroker.replication.lease import LAPSED_MS, NO_MEMBER_MS
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.server.api.handlers.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pybroker.server.api.handlers.produce import ACKS_ALL
from tests.harness import eventually
from tests.server.handlers.desk import ELSEWHERE, HERE, Desk
from tests.server.handlers.test_fetch import fetch
from tests.server.handlers.test_groups import commit, join, serve, stands
from tests.server.handlers.test_offsets import EPOCHS, listed
from tests.server.live import BASE_MS, batch

MOVED, ELSEWHERE_NOW = errors.NOT_LEADER_OR_FOLLOWER, errors.NOT_COORDINATOR
BEYOND = BASE_MS + 1000


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A desk with a short replica fetch timeout, so that a missing confirmation by followers is given up soon."""
    made = await Desk(tmp_path / "data", "replica.fetch.wait.max.ms=50").begin()
    yield made
    await made.end()


@pytest.fixture
async def lapsed(desk: Desk) -> Desk:
    """A desk with two committed records and a follower that has not fetched since the lease lapsed."""
    await desk.topic("t")
    replica = desk.replica("t")
    await replica.append(batch(b"a", b"b"), 1)
    await followed(replica)
    desk.replicas.set_lease(LAPSED_MS)
    return desk


async def followed(replica: Replica) -> None:
    await replica.lead(replica.leader_epoch, 1, [ELSEWHERE], [HERE, ELSEWHERE])
    replica.note_fetch(ELSEWHERE, replica.partition().log_end_offset, replica.leader_epoch, monotonic_ms())


@contextlib.asynccontextmanager
async def proving(*replicas: Replica) -> AsyncIterator[None]:
    """Let the follower fetch again and again."""

    async def follow() -> None:
        for epoch in count(1):
            for replica in replicas:
                log = replica.partition()
                log.note_fetch(
                    ELSEWHERE, log.log_end_offset, leader_epoch=replica.leader_epoch, session=7, session_epoch=epoch,
                    now_ms=monotonic_ms(),
                )  # fmt: skip
                replica.tell()
            await asyncio.sleep(0.005)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()


async def ends(desk: Desk, replica_id: int | None) -> tuple[int, int]:
    """Send OffsetForLeaderEpoch; return (error code, end offset). With replica_id None: v2, as librdkafka sends it."""
    asked = EPOCHS.Partitions(partition=0, current_leader_epoch=-1, leader_epoch=0)
    version, by = (2, {}) if replica_id is None else (4, {"replica_id": replica_id})
    answer = await desk.ask("OffsetForLeaderEpoch", version, topics=[EPOCHS(topic="t", partitions=[asked])], **by)
    return answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].end_offset


async def fetched(desk: Desk, offset: int) -> tuple[int, bool]:
    [found] = await fetch(desk, "t", offset)
    return found.error_code, len(found.records) > 0


async def test_a_fetch_beyond_its_end_is_not_out_of_range(lapsed: Desk) -> None:
    """A consumer may have read that offset at the next leader; OFFSET_OUT_OF_RANGE would make it go back."""
    assert await fetched(lapsed, 0) == (0, True)
    assert await fetched(lapsed, 2) == (0, False)
    assert await fetched(lapsed, 3) == (MOVED, False)
    [found] = await fetch(lapsed, "t", 3)
    assert found.error_code == MOVED and found.current_leader is None, "no client is sent to this broker again"
    async with proving(lapsed.replica("t")):
        assert await fetched(lapsed, 3) == (errors.OFFSET_OUT_OF_RANGE, False)


async def test_a_divergence_is_proven(lapsed: Desk) -> None:
    """A consumer that read in another epoch gets no diverging epoch until a follower confirms this leader."""
    await lapsed.replica("t").lead(7, 2, [ELSEWHERE], [HERE, ELSEWHERE])
    [found] = await fetch(lapsed, "t", 2, last_fetched_epoch=5)
    assert (found.error_code, found.diverging_epoch) == (MOVED, None)
    async with proving(lapsed.replica("t")):
        [found] = await fetch(lapsed, "t", 2, last_fetched_epoch=5)
        assert found.error_code == 0 and found.diverging_epoch is not None


async def test_offsets_that_another_leader_would_tell_otherwise(lapsed: Desk) -> None:
    """The log end, the largest timestamp and "no such offset" need a confirmation by followers; the log start and an
    existing record do not."""
    for timestamp in (LATEST, MAX_TIMESTAMP, BEYOND):
        assert (await listed(lapsed, timestamp))[:2] == (MOVED, -1)
    assert (await listed(lapsed, EARLIEST))[:2] == (0, 0)
    assert (await listed(lapsed, BASE_MS))[:2] == (0, 0)
    assert await ends(lapsed, -1) == await ends(lapsed, None) == (MOVED, -1)
    assert await ends(lapsed, ELSEWHERE) == (0, 2), "a follower is fenced by its own epoch"
    async with proving(lapsed.replica("t")):
        assert (await listed(lapsed, LATEST))[:2] == (0, 2)
        assert (await listed(lapsed, BEYOND))[:2] == (0, -1)
        assert await ends(lapsed, -1) == await ends(lapsed, None) == (0, 2)


async def deleted(desk: Desk, offset: int) -> tuple[int, int]:
    """Send DeleteRecords; return (error code, low watermark)."""
    kind = m.DeleteRecordsRequest.Topics
    asked = kind(name="t", partitions=[kind.Partitions(partition_index=0, offset=offset)])
    answer = await desk.ask("DeleteRecords", 2, topics=[asked], timeout_ms=0)
    [found] = answer.topics[0].partitions
    return found.error_code, found.low_watermark


async def test_records_are_deleted_by_the_leader(lapsed: Desk) -> None:
    """Only a confirmed leader deletes records: a former one has an old log end, and its deletions are lost."""
    assert await deleted(lapsed, 3) == (MOVED, -1)
    assert await deleted(lapsed, 1) == (MOVED, -1)
    assert lapsed.replica("t").partition().log_start_offset == 0
    async with proving(lapsed.replica("t")):
        assert await deleted(lapsed, 3) == (errors.OFFSET_OUT_OF_RANGE, -1)


async def test_a_lease_that_comes_back_proves_it(lapsed: Desk) -> None:
    asked = asyncio.create_task(listed(lapsed, LATEST))
    await asyncio.sleep(0)
    lapsed.replicas.set_lease(0)
    assert (await asked)[:2] == (0, 2)


async def heartbeat(desk: Desk) -> int:
    answer = await desk.ask("Heartbeat", 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    return int(answer.error_code)


async def test_groups_are_coordinated_while_followers_prove_it(desk: Desk) -> None:
    """A coordinator answers no heartbeat, offset or description of a group until followers confirm it as leader; so
    groups go on while ZooKeeper is down for all brokers."""
    await serve(desk)
    assert await commit(desk, "g", ("t", 0, 5)) == [0]
    logs = [desk.replica(OFFSETS_TOPIC, index) for index in (0, 1)]
    for log in logs:
        await followed(log)
    desk.replicas.set_lease(LAPSED_MS)
    assert await heartbeat(desk) == ELSEWHERE_NOW
    assert [code for code, _ in await stands(desk, ("g", None))] == [ELSEWHERE_NOW]
    assert (await join(desk, "g")).error_code == ELSEWHERE_NOW
    described = (await desk.ask("DescribeGroups", 5, groups=["g"], include_authorized_operations=False)).groups
    assert [group.error_code for group in described] == [ELSEWHERE_NOW]
    listing: dict[str, Any] = {"states_filter": [], "types_filter": []}
    assert (await desk.ask("ListGroups", 4, **listing)).error_code == ELSEWHERE_NOW
    deleted = await desk.ask("DeleteGroups", 2, groups_names=["g"])
    assert [result.error_code for result in deleted.results] == [ELSEWHERE_NOW]
    async with proving(*logs):
        assert await heartbeat(desk) == errors.UNKNOWN_MEMBER_ID
        assert await stands(desk, ("g", None)) == [(0, {"t": {0: 5}})]
        assert await commit(desk, "g", ("t", 0, 6)) == [0]
        assert await stands(desk, ("g", None)) == [(0, {"t": {0: 6}})]
        assert (await desk.ask("ListGroups", 4, **listing)).error_code == 0


async def test_a_refused_commit_is_in_doubt(desk: Desk) -> None:
    """An unconfirmed coordinator does not answer ILLEGAL_GENERATION, as the next one may have that generation."""
    await serve(desk)
    for index in (0, 1):
        await followed(desk.replica(OFFSETS_TOPIC, index))
    desk.replicas.set_lease(LAPSED_MS)
    member = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    assert await commit(desk, "g", ("t", 0, 5), **member) == [ELSEWHERE_NOW]


async def produced(desk: Desk) -> int:
    kind = m.ProduceRequest.TopicData
    data = [kind(name="t", partition_data=[kind.PartitionData(index=0, records=batch(b"c"))])]
    answer = await desk.ask("Produce", 9, acks=ACKS_ALL, timeout_ms=20_000, topic_data=data)
    return int(answer.responses[0].partition_responses[0].error_code)


async def soon(answer: Awaitable[int]) -> int:
    """Wait for an answer that must come long before the request's timeout."""
    async with asyncio.timeout(10):
        return await answer


async def test_who_was_replaced_takes_nothing(lapsed: Desk) -> None:
    """A broker takes acks=all while ZooKeeper is down. Once its registration is lost it refuses all writes, waiting
    ones too, until the controller sends its role."""
    replica = lapsed.replica("t")
    waits = asyncio.create_task(produced(lapsed))
    await asyncio.sleep(0)
    await eventually("it is appended", lambda: replica.partition().log_end_offset > 2)
    assert not waits.done()
    lapsed.replicas.set_lease(NO_MEMBER_MS)
    assert await soon(waits) == MOVED
    end = replica.partition().log_end_offset
    assert await soon(produced(lapsed)) == MOVED
    assert replica.partition().log_end_offset == end
    async with proving(replica):
        assert (await listed(lapsed, LATEST))[0] == MOVED, "a follower's fetch from before the loss confirms nothing"
        lapsed.replicas.set_lease(0)
        assert await soon(produced(lapsed)) == 0


async def test_what_was_read_before_the_controller_spoke(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer read before the lease was renewed is refused, as another broker led meanwhile and had more records."""
    await desk.topic("t")
    replica = desk.replica("t")
    await replica.append(batch(b"a", b"b"), 1)
    await followed(replica)
    at_disk, proven = Replica.at_disk, Proof.found

    async def demoted() -> None:
        if replica.leads:
            await replica.follow(ELSEWHERE, replica.leader_epoch + 1, 1)
        desk.replicas.set_lease(0)

    async def read_and_demoted(self: Replica, *work: Any) -> Any:
        done = await at_disk(self, *work)
        await demoted()
        return done

    async def demoted_and_proven(self: Proof, *asked: Any) -> bool:
        await demoted()
        return await proven(self, *asked)

    for ask in (lambda: fetched(desk, 3), lambda: listed(desk, LATEST), lambda: listed(desk, BEYOND)):
        await replica.lead(replica.leader_epoch + 1, 1, [ELSEWHERE], [HERE, ELSEWHERE])
        desk.replicas.set_lease(NO_MEMBER_MS)
        monkeypatch.setattr(Replica, "at_disk", read_and_demoted)
        monkeypatch.setattr(Proof, "found", demoted_and_proven)
        assert (await ask())[0] == MOVED
        monkeypatch.undo()
