"""Quotas of whole brokers: what is counted, the throttle time in answers, and how long a connection is muted."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from typing import Any

import pytest

from pybroker.decisions.caller import Call, Caller, Throttle
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.security.quotas import CONSUMER, MUTATION, PRODUCER, REQUEST, ClientQuotas
from pybroker.server import broker as broker_module
from pybroker.server.api import quotas as quotas_module
from pybroker.server.api.dispatch import Handler
from tests.harness import eventually
from tests.server.live import KEYS, Live, Wire, batch, fetch_fields, produce_data
from tests.server.test_client_quotas import alter, entry

KB = 1000
CLIENT = {"client_id": "test"}
HOUR_MS = 3_600_000
IDLE_MS = 2000
"""Longer than a busy machine delays a test's next request."""


def native(live: Live) -> dict[str, tuple[int, int]]:
    """{api: (requests that the plane executed, requests that it left to Python)}."""
    assert live.broker is not None and live.broker.replicas is not None
    stats = live.broker.replicas.plane_stats()
    return {
        api: (sum(each[api]["requests"] for each in stats), sum(each[api]["declined"] for each in stats))
        for api in ("Produce", "Fetch")
    }


async def quota(live: Live, of: dict[str, str | None], **values: float | None) -> Wire:
    """Set a quota; return the connection that set it."""
    admin = await live.connect()
    assert await alter(admin, entry(of, **values)) == [0]
    return admin


async def produced(wire: Wire, records: bytes, *, acks: int = 1, client_id: str | None = "test") -> int:
    """Produce; return the throttle_time_ms of the answer."""
    request = m.ProduceRequest(acks=acks, timeout_ms=5000, topic_data=produce_data("t", {0: records}))
    wire.send_frame(codec.encode_request(KEYS["Produce"], 9, 1, client_id, request))
    if acks == 0:
        return 0
    _, answer = await wire.receive("Produce", 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return int(answer.throttle_time_ms)


SMALL, LARGE = batch(b"x" * 100), batch(b"x" * 50 * KB)


@pytest.mark.both_planes
async def test_a_produce_that_is_too_much_is_answered_and_the_next_waits(live: Live) -> None:
    """A Produce over the quota is answered at once and the next one waits for the throttle time, even for hours."""
    wire, other = await live.connect(), await live.connect()
    await wire.create("t")
    await quota(live, {"client_id": "other"}, **{PRODUCER: 1})
    await quota(live, CLIENT, **{PRODUCER: 100 * KB})
    assert await produced(other, LARGE, client_id="other") > HOUR_MS, "the answer comes at once"
    waits = asyncio.create_task(produced(other, SMALL, client_id="other"))
    for _ in range(19):
        assert await produced(wire, LARGE) == 0
    told, began = 0, 0.0
    while told == 0:
        began = time.monotonic()  # the answer may take time to arrive
        told = await produced(wire, LARGE)
    assert told <= 550
    assert await produced(wire, SMALL) > 0
    assert time.monotonic() - began >= told / 1000 - 0.05, "nothing is read meanwhile"
    assert not waits.done()
    waits.cancel()


@pytest.mark.both_planes
async def test_others_are_not_hit(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    await quota(live, CLIENT, **{PRODUCER: 10 * KB})
    await quota(live, {"client_id": "for hours"}, **{PRODUCER: 1})
    while not await produced(wire, LARGE):
        pass
    held, other = await live.connect(), await live.connect()
    assert await produced(held, LARGE, client_id="for hours") > HOUR_MS
    waits = asyncio.create_task(produced(held, SMALL, client_id="for hours"))
    for _ in range(20):
        assert await produced(other, SMALL, client_id="other") == 0
    assert not waits.done()
    waits.cancel()
    assert await produced(await live.connect(), SMALL) > 0, "all connections share the bucket"


async def test_without_quotas_nothing_is_python_s(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    await produced(wire, SMALL)
    before = native(live)["Produce"]
    admin = await quota(live, {"user": "somebody"}, **{PRODUCER: 1})
    for _ in range(10):
        assert await produced(wire, SMALL) == 0
    after = native(live)["Produce"]
    assert (after[0] - before[0], after[1] - before[1]) == (9, 1), "one request looks up the quotas and finds none"
    for client_id in ("a", "b", "a", "a", "x" * 257, "x" * 257):
        await produced(wire, SMALL, client_id=client_id)
    last = native(live)["Produce"]
    assert (last[0] - after[0], last[1] - after[1]) == (1, 5), "another client id is looked up again"
    assert await alter(admin, entry({"user": "somebody"}, **{PRODUCER: None})) == [0]
    for client_id in ("c", "d"):
        await produced(wire, SMALL, client_id=client_id)
    assert native(live)["Produce"][1] == last[1], "without quotas no client id is looked up"


async def fetched(wire: Wire, offset: int, **how: Any) -> Any:
    return await wire.call("Fetch", 12, **fetch_fields("t", offset, partition_max_bytes=100 * KB, **how))


def bytes_of(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


@pytest.mark.both_planes
async def test_a_fetch_that_is_too_much_is_empty_and_comes_later(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    for _ in range(40):
        assert await produced(wire, LARGE) == 0
    await quota(live, CLIENT, **{CONSUMER: 100 * KB})
    got, offset, waited = 0, 0, 0.0
    while got < 1000 * KB:
        answer = await fetched(wire, offset)
        if answer.throttle_time_ms:
            break
        records = bytes_of(answer)
        got += records
        offset += records // len(LARGE)
        assert records
    assert got >= 900 * KB, "ten seconds' worth are free"
    began = time.monotonic()
    answer = await fetched(wire, offset)
    while not answer.throttle_time_ms:
        offset += bytes_of(answer) // len(LARGE)
        began = time.monotonic()
        answer = await fetched(wire, offset)
    again = await fetched(wire, offset)
    waited = time.monotonic() - began
    assert waited >= answer.throttle_time_ms / 1000 - 0.05
    assert bytes_of(again) <= 3 * len(LARGE), "a throttled client gets little at a time"


@pytest.mark.both_planes
@pytest.mark.parametrize("incremental", [False, True])
async def test_what_was_not_given_is_given_later(live: Live, incremental: bool) -> None:
    wire = await live.connect()
    await wire.create("t")
    await quota(live, CLIENT, **{CONSUMER: 40 * KB})
    for _ in range(10):
        assert await produced(wire, LARGE) == 0
    session = 0
    for _ in range(3):
        answer = await wire.call("Fetch", 12, session_epoch=0, **fetch_fields("t", 10))
        session = answer.session_id
        assert answer.throttle_time_ms == 0
        if session:
            break
    assert session
    epoch, offset, empties = 1, 0, 0
    began = time.monotonic()
    kind = m.FetchRequest.Topics
    while offset < 9:
        wanted = kind.Partitions(fetch_offset=offset, partition_max_bytes=100 * KB)
        topics = [kind(topic="t", partitions=[wanted])]
        if incremental:
            how = {"session_id": session, "session_epoch": epoch}
            epoch += 1
        else:
            how = {"session_epoch": -1}
        answer = await wire.call("Fetch", 12, max_bytes=1 << 20, topics=topics, **how)
        assert answer.error_code == 0
        empties += bytes_of(answer) == 0
        assert bytes_of(answer) or answer.throttle_time_ms, "an empty answer says how long to wait"
        assert not incremental or answer.session_id == session
        offset += bytes_of(answer) // len(LARGE)
    assert empties > 0 and time.monotonic() - began > 1


@pytest.mark.both_planes
async def test_acks_0_is_muted_too(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    await quota(live, CLIENT, **{PRODUCER: 50 * KB})
    began = time.monotonic()
    for _ in range(12):
        await produced(wire, LARGE, acks=0)
    assert await produced(wire, SMALL) > 0
    assert time.monotonic() - began > 1, "two hundred kilobytes too much, at fifty a second"


async def test_whoever_is_muted_and_leaves_is_gone(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    await quota(live, CLIENT, **{PRODUCER: 1})
    assert live.broker is not None and live.broker._sockets is not None
    sockets = live.broker._sockets
    before = len(sockets)
    leaves = await live.connect()
    assert await produced(leaves, LARGE) > 10_000
    assert len(sockets) == before + 1
    leaves.writer.close()
    await eventually("its connection is gone", lambda: len(sockets) == before)
    await quota(live, {"client_id": "other"}, **{PRODUCER: 1})
    stays = await live.connect()
    assert await produced(stays, LARGE, client_id="other") > 10_000
    stays.writer.write_eof()
    assert await stays.reader.read() == b"", "so is a client that only shuts down its sending side"


async def test_who_is_muted_goes_on_when_the_quota_is_lifted(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    admin = await quota(live, CLIENT, **{PRODUCER: 1})
    assert await produced(wire, LARGE) > 10_000
    waiting = asyncio.create_task(produced(wire, SMALL))
    assert await alter(admin, entry(CLIENT, **{PRODUCER: None})) == [0]
    assert await waiting == 0


async def test_muted_is_not_idle(live: Live) -> None:
    """A connection muted for twice the idle time is not closed as idle, and is read again afterwards."""
    await live.restart(f"connections.max.idle.ms={IDLE_MS}")
    wire = await live.connect()
    await wire.create("t")
    await quota(live, CLIENT, **{PRODUCER: 10 * KB})
    while await produced(wire, LARGE) < 2 * IDLE_MS:
        pass
    await produced(wire, SMALL)


@pytest.mark.both_planes
@pytest.mark.parametrize("client_id", ["", None])
async def test_who_says_no_client_id_counts_by_users_alone(live: Live, client_id: str | None) -> None:
    wire = await live.connect()
    await wire.create("t")
    await quota(live, {"client_id": None}, **{PRODUCER: 1})
    await quota(live, {"user": "ANONYMOUS", "client_id": None}, **{PRODUCER: 1})
    assert await produced(wire, SMALL, client_id=client_id) == 0
    await quota(live, {"user": "ANONYMOUS"}, **{PRODUCER: 1})
    assert await produced(wire, LARGE, client_id=client_id) > 0


LEVELS: list[dict[str, str | None]] = [
    {"user": "ANONYMOUS", "client_id": "tä st"}, {"user": "ANONYMOUS", "client_id": None}, {"user": "ANONYMOUS"},
    {"user": None, "client_id": "tä st"}, {"user": None, "client_id": None}, {"user": None},
    {"client_id": "tä st"}, {"client_id": None},
]  # fmt: skip


@pytest.mark.both_planes
async def test_every_level_holds_and_the_first_that_is_set_wins(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    admin = await live.connect()
    for level in reversed(LEVELS):
        client = await live.connect()
        assert await produced(client, SMALL, client_id="tä st") == 0  # sent before there was a throttle time
        assert await alter(admin, entry(level, **{PRODUCER: 10})) == [0]
        assert await produced(client, LARGE, client_id="tä st") > 1000
        assert await alter(admin, entry(level, **{PRODUCER: 1e9})) == [0]
        assert await produced(await live.connect(), LARGE, client_id="tä st") == 0


@pytest.mark.both_planes
async def test_time_of_threads(live: Live) -> None:
    wire = await live.connect()
    await wire.create("t")
    for _ in range(5):
        await produced(wire, LARGE)
    await quota(live, CLIENT, **{REQUEST: 0.001})
    told = []
    for name, version, fields in (
        ("Metadata", 9, {"topics": None}), ("Produce", 9, {"acks": 1, "topic_data": produce_data("t", {0: SMALL})}),
        ("Fetch", 12, fetch_fields("t", 0)), ("ListGroups", 4, {}), ("Metadata", 9, {"topics": None}),
    ):  # fmt: skip
        answer = await wire.call(name, version, **fields)
        told.append(answer.throttle_time_ms)
    assert all(0 <= each <= 1000 for each in told), "one window at most"
    assert told[-1] > 0 and told[-2] > 0


async def test_what_was_denied_or_failed_counts(live: Live) -> None:
    wire = await live.connect()
    await quota(live, CLIENT, **{REQUEST: 0.0001, PRODUCER: 1})
    answer = await wire.call("Produce", 9, acks=1, timeout_ms=1000, topic_data=produce_data("nowhere", {0: LARGE}))
    assert answer.responses[0].partition_responses[0].error_code == 3 and answer.throttle_time_ms > 0


# -- partitions that are created and deleted ---------------------------------------------------------------------------


def topics_of(*counts: int) -> list[Any]:
    kind = m.CreateTopicsRequest.Topics
    return [kind(name=f"m{n}", num_partitions=count, replication_factor=1) for n, count in enumerate(counts)]


async def test_partitions_that_are_made_and_deleted(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so that the quota does not refill."""
    monkeypatch.setattr(broker_module, "monotonic_ms", lambda: HOUR_MS)
    await live.restart()
    admin = await quota(live, {"user": "ANONYMOUS"}, **{MUTATION: 1})
    wire = await live.connect()
    only = await wire.call("CreateTopics", 7, topics=topics_of(5, 5, 5, 5), timeout_ms=5000, validate_only=True)
    assert [topic.error_code for topic in only.topics] == [0] * 4 and only.throttle_time_ms == 0
    wrong = await wire.call("CreateTopics", 7, topics=topics_of(5, 0), timeout_ms=5000)
    assert sorted(topic.error_code for topic in wrong.topics) == [0, 37], "a refused topic costs nothing"
    assert wrong.throttle_time_ms == 0
    answer = await wire.call("CreateTopics", 7, topics=topics_of(5, 5, 5, 5)[1:], timeout_ms=5000)
    assert {topic.name: topic.error_code for topic in answer.topics} == {"m1": 0, "m2": 0, "m3": 89}
    assert 3000 < answer.throttle_time_ms <= 4000
    other = await live.connect()
    gone = await other.call("DeleteTopics", 6, topics=[m.DeleteTopicsRequest.Topics(name="m1")], timeout_ms=5000)
    assert [topic.error_code for topic in gone.responses] == [89] and gone.throttle_time_ms > 0
    third = await live.connect()
    gone = await third.call("DeleteTopics", 4, topic_names=["m1", "nowhere"], timeout_ms=5000)
    assert [topic.error_code for topic in gone.responses] == [0, 3], "an older client is served, and waits"
    assert 7000 < gone.throttle_time_ms <= 9000
    kind = m.CreatePartitionsRequest.Topics
    fourth = await live.connect()
    grown = await fourth.call("CreatePartitions", 3, topics=[kind(name="m2", count=6)], timeout_ms=5000)
    assert grown.results[0].error_code == 89
    assert await alter(admin, entry({"user": "ANONYMOUS"}, **{MUTATION: None})) == [0]
    fifth = await live.connect()
    grown = await fifth.call("CreatePartitions", 3, topics=[kind(name="m2", count=6)], timeout_ms=5000)
    assert (grown.results[0].error_code, grown.throttle_time_ms) == (0, 0)


async def test_topics_that_are_made_for_they_were_mentioned_cost_as_much(live: Live) -> None:
    await live.restart("num.partitions=4", "auto.create.topics.enable=true")
    await quota(live, {"user": "ANONYMOUS"}, **{MUTATION: 1})
    wire, names = await live.connect(), ["n0", "n1", "n2", "n3"]
    kind = m.MetadataRequest.Topics
    answer = await wire.call("Metadata", 9, topics=[kind(name=name) for name in names])
    assert [topic.error_code for topic in answer.topics] == [5] * 4, "the client has to retry"
    assert answer.throttle_time_ms > 0
    other = await live.connect()

    async def made() -> set[str]:
        return {topic.name for topic in (await other.call("Metadata", 9, topics=None)).topics}

    async def three() -> bool:
        return len(await made()) >= 3

    await eventually("three are made", three, every_s=0.05)
    assert await made() == {"n0", "n1", "n2"}, "eleven tokens pay for two topics and a part"


async def test_metrics_tell_how_many_had_to_wait(live: Live) -> None:
    await live.restart("metrics.listener=127.0.0.1:0")
    assert live.broker is not None
    wire = await live.connect()
    await wire.create("t")
    await quota(live, CLIENT, **{PRODUCER: 10})
    told = await produced(wire, LARGE)
    text = (await asyncio.to_thread(scrape, live.broker.metrics_port)).decode()
    assert f'pybroker_quota_throttles_total{{quota="{PRODUCER}"}} 1.0' in text
    assert f'pybroker_quota_throttle_seconds_total{{quota="{PRODUCER}"}} {told / 1000}' in text
    assert f'pybroker_quota_throttles_total{{quota="{CONSUMER}"}} 0.0' in text


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return bytes(answer.read())


def test_buckets_are_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client ids are arbitrary, so old buckets are forgotten; throttle times already sent still apply."""
    monkeypatch.setattr(quotas_module, "BUCKETS_MAX", 100)
    held, now_ms = ClientQuotas(), [5_000_000]
    held.take((("client-id", None),), {PRODUCER: "1"})
    manager = quotas_module.QuotaManager(held, None, lambda: now_ms[0])

    def answer(request: Any, call: Call) -> Any:
        return m.ProduceResponse()

    [by] = manager.counted({0: Handler(answer, answer)}).values()
    throttle = Throttle()
    caller = Caller("127.0.0.1", 1, "PLAINTEXT", throttle=throttle)
    for number in range(1000):
        by.by(m.ProduceRequest(acks=1), Call(9, f"client {number}", caller, size=1000))
        assert throttle.take_mute() > 0 and throttle.told is not None
    assert len(manager._buckets) == 100
    assert manager.throttled[PRODUCER][0] == 1000
    last = throttle.client
    now_ms[0] += 3_600_001
    by.by(m.ProduceRequest(acks=1), Call(9, "another", caller, size=1000))
    assert last.produce.retired and len(manager._buckets) == 1, "a bucket idle for an hour is forgotten"


async def test_a_request_in_slices_is_counted(live: Live) -> None:
    """Each slice of a large request is counted apart from its handler, and the answer is complete."""
    wire = await live.connect()
    await quota(live, CLIENT, **{REQUEST: 1000})
    groups = [f"g{number}" for number in range(1000)]
    answer = await wire.call("DescribeGroups", 5, groups=groups)
    assert [group.group_id for group in answer.groups] == groups
