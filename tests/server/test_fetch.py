"""Fetch: which bytes are returned, when the answer is sent, and what a session leaves out."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
import time
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.protocol import messages as m
from tests.harness import eventually
from tests.server.live import Live, Wire, batch, fetch_fields, produce_data, values

HOUR_MS = 3_600_000
TRIES = 50
pytestmark = pytest.mark.both_planes


async def test_from_any_offset_the_batch_that_holds_it_comes(wire: Wire) -> None:
    """A Fetch returns whole batches: the client skips records before its offset."""
    await wire.create("t")
    for n in range(3):
        await wire.produce("t", batch(b"%d" % n, b"%d'" % n))
    for offset, first in ((0, 0), (1, 0), (2, 2), (5, 4)):
        data = bytes((await wire.fetch("t", offset)).records)
        assert core.check_batch(data).base_offset == first
    assert bytes((await wire.fetch("t", 6)).records) == b""


@pytest.mark.parametrize("offset", [-1, 7, 1 << 62])
async def test_an_offset_outside_the_log(wire: Wire, offset: int) -> None:
    await wire.create("t")
    await wire.produce("t", batch(b"v"))
    answer = await wire.fetch("t", offset, max_wait_ms=10_000)
    assert (answer.error_code, bytes(answer.records)) == (errors.OFFSET_OUT_OF_RANGE, b"")


async def test_the_first_batch_comes_whole_whatever_the_limits(wire: Wire) -> None:
    """After the first batch the limits of each partition and of the answer are strict, and batches are never cut."""
    await wire.create("t", 3)
    size = len(batch(b"x" * 1000))
    for partition in range(3):
        for _ in range(5):
            await wire.produce("t", batch(b"x" * 1000), partition=partition)

    async def sizes(**limits: int) -> list[int]:
        response = await wire.call("Fetch", 12, **fetch_fields("t", 0, 0, 0, **limits))
        return [len(p.records) for p in response.responses[0].partitions]

    assert await sizes(max_bytes=1, partition_max_bytes=1) == [size, 0, 0]
    assert await sizes(partition_max_bytes=size) == [size, size, size]
    assert await sizes(partition_max_bytes=size * 2 - 1) == [size, size, size]
    assert await sizes(max_bytes=size * 3, partition_max_bytes=size * 2) == [size * 2, size, 0]
    assert await sizes(max_bytes=size * 6 + 1) == [size * 5, size, 0]


async def test_the_brokers_own_limit(live: Live) -> None:
    await live.restart("fetch.max.bytes=2048")
    wire = await live.connect()
    await wire.create("t")
    for _ in range(5):
        await wire.produce("t", batch(b"x" * 900))
    assert len(values((await wire.fetch("t", 0)).records)) == 2


# -- long polls --------------------------------------------------------------------------------------------------------


async def test_a_fetch_that_waits_is_woken_by_the_append(live: Live, wire: Wire) -> None:
    """The append wakes the waiting fetch: its answers take less time than a poll at some interval would."""
    await wire.create("t")
    reader = await live.connect()
    answered = []
    for n in range(20):
        reader.send("Fetch", 12, **fetch_fields("t", n, max_wait_ms=HOUR_MS))
        await live.one_waits()
        await wire.produce("t", batch(b"%d" % n))
        receiving, count = asyncio.create_task(reader.receive("Fetch", 12)), 0
        while not receiving.done():
            await wire.fetch("t", 0)
            count += 1
        _, response = await receiving
        answered.append(count)
        assert values(response.responses[0].partitions[0].records) == [b"%d" % n]
    assert sorted(answered)[10] < 10, answered


async def test_the_wait_is_exact(wire: Wire) -> None:
    """An empty fetch waits max_wait_ms, as librdkafka's next requests wait behind it; never less, rarely more."""
    await wire.create("t")
    for wait_ms in (0, 50, 300):
        for _ in range(TRIES):
            started = time.monotonic()
            answer = await wire.fetch("t", 0, max_wait_ms=wait_ms)
            waited_ms = (time.monotonic() - started) * 1000
            assert (answer.error_code, bytes(answer.records)) == (0, b"") and waited_ms >= wait_ms
            if waited_ms < wait_ms + 60:
                break
        else:
            raise AssertionError(f"each of {TRIES} waits of {wait_ms} ms was late")


def unread(wire: Wire) -> int:
    """The number of bytes received and not read by a client."""
    found = fcntl.ioctl(wire.writer.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(found, sys.byteorder)


async def told_of(live: Live, wire: Wire, *ends: int) -> None:
    """Append a batch of 1,000 bytes to the last of the partitions, which have these end offsets. Return when a second
    fetch, parked after the first, has returned it."""
    witness = await live.connect()
    witness.send("Fetch", 12, **fetch_fields("t", *ends, max_wait_ms=60_000))
    await live.one_waits(at_least=2)
    await wire.produce("t", batch(b"x" * 1000), partition=len(ends) - 1)
    _, response = await witness.receive("Fetch", 12)
    assert [values(p.records) for p in response.responses[0].partitions][-1] == [b"x" * 1000]


async def test_min_bytes_over_several_partitions_and_appends(live: Live, wire: Wire) -> None:
    """The fetch waits until all its partitions together have min_bytes."""
    await wire.create("t", 2)
    reader = await live.connect()
    size = len(batch(b"x" * 1000))
    reader.send("Fetch", 12, **fetch_fields("t", 0, 0, max_wait_ms=10_000, min_bytes=size * 3))
    waiting = asyncio.create_task(reader.receive("Fetch", 12))
    await live.one_waits()
    for partition in (0, 1):
        await told_of(live, wire, *[1] * partition, 0)
        assert not waiting.done()
    await wire.produce("t", batch(b"x" * 1000))
    _, response = await waiting
    assert [len(p.records) for p in response.responses[0].partitions] == [size * 2, size]


async def test_a_partition_counts_no_more_than_it_may_bring(live: Live, wire: Wire) -> None:
    """Bytes beyond partition_max_bytes cannot be in the answer, so they do not count for min_bytes."""
    await wire.create("t", 2)
    size = len(batch(b"x" * 1000))
    reader = await live.connect()
    fields = fetch_fields("t", 0, 0, max_wait_ms=60_000, min_bytes=size * 2, partition_max_bytes=size)
    reader.send("Fetch", 12, **fields)
    waiting = asyncio.create_task(reader.receive("Fetch", 12))
    await live.one_waits()
    for n in range(5):
        await told_of(live, wire, n)
        assert not waiting.done()
    await wire.produce("t", batch(b"x" * 1000), partition=1)
    _, response = await waiting
    assert [len(p.records) for p in response.responses[0].partitions] == [size, size]


async def test_an_error_ends_the_wait_of_the_others(wire: Wire) -> None:
    await wire.create("t")
    response = await wire.call("Fetch", 12, **fetch_fields("t", 0, 0, max_wait_ms=HOUR_MS))
    assert [p.error_code for p in response.responses[0].partitions] == [0, errors.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_stop_answers_parked_fetches(live: Live, wire: Wire) -> None:
    """A clean stop answers parked fetches at once."""
    await wire.create("t")
    reader = await live.connect()
    reader.send("Fetch", 12, **fetch_fields("t", 0, max_wait_ms=HOUR_MS))
    await live.one_waits()
    broker, live.broker = live.broker, None
    assert broker is not None
    await broker.stop()
    _, response = await reader.receive("Fetch", 12)
    assert response.responses[0].partitions[0].error_code == 0
    assert await reader.closed()


@pytest.mark.parametrize("live", ["python"], indirect=True)
async def test_a_reader_that_goes_leaves_nothing_behind(live: Live, wire: Wire) -> None:
    """A parked fetch of a closed connection no longer waits for its partition."""
    await wire.create("t")
    assert live.broker is not None and live.broker.replicas is not None
    replica = live.broker.replicas.leader("t", 0)
    reader = await live.connect()
    reader.send("Fetch", 12, **fetch_fields("t", 0, max_wait_ms=60_000))
    await eventually("it waits", lambda: replica.waited_for)
    reader.writer.close()
    await eventually("it waits no longer", lambda: not replica.waited_for)


# -- replicas and leader epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "claim"),
    [
        (11, {"replica_id": 0}),
        (11, {"replica_id": 1001}),
        (15, {"replica_state": m.FetchRequest.ReplicaState(replica_id=1001, replica_epoch=1)}),
    ],
)
async def test_a_client_may_not_claim_to_be_a_broker(wire: Wire, version: int, claim: dict[str, Any]) -> None:
    """A client with a replica id is answered as in Kafka that it is no replica, and acks=all does not wait for it."""
    created = await wire.create("t")
    await wire.produce("t", batch(b"v"))
    epoch = (await wire.call("Metadata", 12, topics=None)).topics[0].partitions[0].leader_epoch
    topic = created.topic_id if version >= 13 else "t"
    told = {-1: errors.NOT_LEADER_OR_FOLLOWER, epoch: errors.UNKNOWN_LEADER_EPOCH}
    for known, code in told.items():
        fields = fetch_fields(topic, 0, current_leader_epoch=known, max_wait_ms=60_000, min_bytes=1 << 20)
        [answer] = (await wire.call("Fetch", version, **fields, **claim)).responses[0].partitions
        assert (answer.error_code, answer.high_watermark, bytes(answer.records)) == (code, -1, b"")
    assert (await wire.produce("t", batch(b"w"))).error_code == 0
    assert (await wire.fetch("t", 0)).high_watermark == 2


async def test_leader_epochs_fence(live: Live, wire: Wire) -> None:
    """An older epoch gets FENCED_LEADER_EPOCH, a newer one UNKNOWN_LEADER_EPOCH, and the current one is served."""
    await wire.create("t")
    await live.restart()
    wire = await live.connect()
    metadata = await wire.call("Metadata", 12, topics=None)
    now = metadata.topics[0].partitions[0].leader_epoch
    assert now > 0
    cases = ((now, 0), (-1, 0), (now - 1, errors.FENCED_LEADER_EPOCH), (now + 1, errors.UNKNOWN_LEADER_EPOCH))
    for epoch, code in cases:
        assert (await wire.fetch("t", 0, current_leader_epoch=epoch)).error_code == code


async def test_a_log_that_diverges_is_told_where(live: Live, wire: Wire) -> None:
    """A client whose last_fetched_epoch ended earlier in this log gets that epoch's end offset (KIP-595)."""
    await wire.create("t")
    await wire.produce("t", batch(b"a"))
    first = (await wire.call("Metadata", 12, topics=None)).topics[0].partitions[0].leader_epoch
    await live.restart()
    wire = await live.connect()
    await wire.produce("t", batch(b"b"))
    answer = await wire.fetch("t", 2, last_fetched_epoch=first)
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (first, 1)
    assert bytes(answer.records) == b""
    assert values((await wire.fetch("t", 1, last_fetched_epoch=first)).records) == [b"b"]


# -- sessions ----------------------------------------------------------------------------------------------------------


def fetched(response: Any) -> dict[int, list[bytes | None]]:
    return {p.partition_index: values(p.records) for topic in response.responses for p in topic.partitions}


async def test_a_session_tells_only_news(wire: Wire) -> None:
    """A session is full, then empty, then has one changed partition, one more, one less, and is closed."""
    await wire.create("t", 4)
    kind = m.FetchRequest
    full = await wire.call("Fetch", 12, **fetch_fields("t", 0, 0, 0), session_id=0, session_epoch=0)
    session = full.session_id
    assert session != 0 and fetched(full) == {0: [], 1: [], 2: []}

    async def go_on(epoch: int, **more: Any) -> Any:
        fields = {"topics": [], "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | more
        return await wire.call("Fetch", 12, session_id=session, session_epoch=epoch, **fields)

    assert fetched(await go_on(1)) == {}
    await wire.produce("t", batch(b"news"), partition=1)
    assert fetched(await go_on(2)) == {1: [b"news"]}
    moved = [
        kind.Topics(topic="t", partitions=[kind.Topics.Partitions(partition=1, fetch_offset=1, partition_max_bytes=99)])
    ]
    assert fetched(await go_on(3, topics=moved)) == {}
    await wire.produce("t", batch(b"more"), partition=3)
    added = [
        kind.Topics(topic="t", partitions=[kind.Topics.Partitions(partition=3, fetch_offset=0, partition_max_bytes=99)])
    ]
    assert fetched(await go_on(4, topics=added)) == {3: [b"more"]}
    forgotten = [kind.ForgottenTopicsData(topic="t", partitions=[3])]
    assert fetched(await go_on(5, forgotten_topics_data=forgotten)) == {}
    assert (await go_on(5)).error_code == errors.INVALID_FETCH_SESSION_EPOCH
    assert (await go_on(-1)).session_id == 0
    assert (await go_on(6)).error_code == errors.FETCH_SESSION_ID_NOT_FOUND


async def test_a_parked_session_fetch_brings_only_what_woke_it(live: Live, wire: Wire) -> None:
    await wire.create("t", 3)
    reader = await live.connect()
    full = await reader.call("Fetch", 12, **fetch_fields("t", 0, 0, 0), session_epoch=0)
    reader.send(
        "Fetch", 12, topics=[], max_wait_ms=10_000, min_bytes=1, max_bytes=1 << 20,
        session_id=full.session_id, session_epoch=1,
    )  # fmt: skip
    await live.one_waits()
    await wire.produce("t", batch(b"x"), partition=2)
    _, response = await reader.receive("Fetch", 12)
    assert fetched(response) == {2: [b"x"]}


async def test_names_and_ids_do_not_mix_in_a_session(wire: Wire) -> None:
    created = await wire.create("t")
    full = await wire.call("Fetch", 12, **fetch_fields("t", 0), session_epoch=0)
    mixed = await wire.call(
        "Fetch", 13, **fetch_fields(created.topic_id, 0), session_id=full.session_id, session_epoch=1
    )
    assert mixed.error_code == errors.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize("live", ["native"], indirect=True)
async def test_a_partition_that_is_unknown_ends_and_delays_a_native_session(live: Live, wire: Wire) -> None:
    """Each answer has the error and no session; once the partition exists, the next full fetch starts a session."""
    await wire.create("t", 1)
    full = await wire.call("Fetch", 12, **fetch_fields("t", 0), session_epoch=0)
    asked = {"session_id": full.session_id, "session_epoch": 1}
    for _ in range(2):  # first as a client that adds a partition to its session, then as one that lost it
        answer = await wire.call("Fetch", 12, **fetch_fields("t", 0, 0), **asked)
        codes = {p.partition_index: p.error_code for topic in answer.responses for p in topic.partitions}
        assert (answer.session_id, codes) == (0, {0: 0, 1: errors.UNKNOWN_TOPIC_OR_PARTITION})
        asked = {"session_id": 0, "session_epoch": 0}
    await wire.call(
        "CreatePartitions", 3, topics=[m.CreatePartitionsRequest.Topics(name="t", count=2)], timeout_ms=5000
    )
    assert (await wire.call("Fetch", 12, **fetch_fields("t", 0, 0), **asked)).session_id > 0


@pytest.mark.parametrize("live", ["python"], indirect=True)  # natively a session ends at an unknown partition
async def test_an_error_is_told_until_it_is_over_and_then_once_more(wire: Wire) -> None:
    """A session repeats the error of an unknown partition, and reports once that the partition exists."""
    await wire.create("t", 1)
    full = await wire.call("Fetch", 12, **fetch_fields("t", 0, 0), session_epoch=0)
    again = {"topics": [], "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_id": full.session_id}

    async def codes(epoch: int) -> dict[int, int]:
        response = await wire.call("Fetch", 12, **again, session_epoch=epoch)
        return {p.partition_index: p.error_code for topic in response.responses for p in topic.partitions}

    assert await codes(1) == {1: errors.UNKNOWN_TOPIC_OR_PARTITION}
    await wire.call(
        "CreatePartitions", 3, topics=[m.CreatePartitionsRequest.Topics(name="t", count=2)], timeout_ms=5000
    )
    assert await codes(2) == {1: 0}
    assert await codes(3) == {}


async def test_a_large_answer_to_a_slow_reader_does_not_hold_up_others(live: Live, wire: Wire) -> None:
    """While a client does not read an answer of 50 MB, produce and fetch of other clients go on."""
    await wire.create("t", max_message_bytes="2000000")
    chunk = batch(b"x" * 1_000_000)
    for _ in range(50):
        wire.send("Produce", 9, acks=1, timeout_ms=1000, topic_data=produce_data("t", {0: chunk}))
    for _ in range(50):
        await wire.receive("Produce", 9)
    slow = await live.connect()
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    slow.send("Fetch", 12, **fetch_fields("t", 0, partition_max_bytes=1 << 26))
    await eventually("its socket is full", lambda: unread(slow) > 1_000)
    for _ in range(20):
        await wire.produce("t", batch(b"v"))
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    _, response = await slow.receive("Fetch", 12)
    assert len(values(response.responses[0].partitions[0].records)) == 50
