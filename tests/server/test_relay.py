"""A relay between a client and the plane: its client gets what other clients of the plane get."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.server.network import bridge, relay
from pybroker.server.network.relay import Relay
from tests.harness import eventually
from tests.server.live import Live, batch, fetch_fields, values
from tests.server.test_throttling import native

LARGE = 900_000


@pytest.fixture
async def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A broker whose plane has no listener numbers, so that every connection has a relay."""
    monkeypatch.setattr(bridge, "LISTENERS_MAX", 0)
    monkeypatch.setattr(relay, "STALL_SECONDS", 0.3)
    made = Live(tmp_path / "data", ["socket.send.buffer.bytes=32768"])
    await made.start()
    yield made
    await made.stop()


def relays(live: Live) -> list[Relay]:
    assert live.broker is not None and live.broker._sockets is not None
    return [p for each in live.broker._sockets._listeners for p in each._connections if isinstance(p, Relay)]


def of_the_plane(live: Live) -> int:
    """The number of connections in the plane."""
    assert live.broker is not None and live.broker.replicas is not None
    return sum(stats["connections"] for stats in live.broker.replicas.plane_stats())


async def test_the_plane_serves_its_client(live: Live) -> None:
    """Produce and Fetch run in core, with more data in both directions than one turn carries."""
    wire = await live.connect()
    topic = await wire.topic()
    value = os.urandom(LARGE)
    assert (await wire.produce(topic, batch(value))).base_offset == 0
    assert values((await wire.fetch(topic, 0)).records) == [value]
    assert len(relays(live)) == of_the_plane(live) == 1
    assert (native(live)["Produce"][0], native(live)["Fetch"][0]) == (1, 1)


async def test_a_client_that_ends_its_half_gets_its_answers(live: Live) -> None:
    """A client that shuts down its sending side gets all its answers, then both sides of the relay are closed."""
    wire = await live.connect()
    for _ in range(10):
        wire.send("ApiVersions", 0)
    wire.writer.write_eof()
    for number in range(1, 11):
        assert (await wire.receive("ApiVersions", 0))[0] == number
    assert await wire.closed()
    await eventually("both are closed", lambda: not relays(live) and of_the_plane(live) == 0)


async def test_a_client_that_goes_leaves_nothing(live: Live) -> None:
    """The plane drops a client's parked fetch, whether the client closed or reset its connection."""
    topic = await (await live.connect()).topic()
    for abort in (False, True):
        wire = await live.connect()
        wire.send("Fetch", 12, **fetch_fields(topic, 0, max_wait_ms=60_000))
        await live.one_waits()
        if abort:
            wire.writer.transport.abort()
        wire.writer.close()
        await eventually("it is gone", lambda: len(relays(live)) == of_the_plane(live) == 1)


async def test_what_the_plane_closes_is_closed_behind_the_answers(live: Live) -> None:
    """After a frame of an invalid size the earlier answer is sent, then the connection is closed."""
    wire = await live.connect()
    number = wire.send("ApiVersions", 0)
    wire.writer.write(b"\xff\xff\xff\xff")
    assert (await wire.receive("ApiVersions", 0))[0] == number
    assert await wire.closed()
    await eventually("both are closed", lambda: not relays(live))


async def test_a_client_that_reads_nothing_holds_up_itself_alone(live: Live) -> None:
    """A client that reads nothing delays only itself: its answers stay in the plane, and it gets them once it reads."""
    slow, other = await live.connect(limit=1 << 14), await live.connect()
    slow.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    topic = await other.topic()
    assert (await other.produce(topic, batch(os.urandom(LARGE)))).error_code == 0
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(3):
        slow.send("Fetch", 12, **fetch_fields(topic, 0))
    await eventually("one is stuck", lambda: any(each._down._held for each in relays(live)))
    assert (await other.produce(topic, batch(b"x"))).base_offset == 1
    assert max(len(each._down._held) for each in relays(live)) <= relay.PIECE_BYTES
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(3):
        _, response = await slow.receive("Fetch", 12)
        assert len(response.responses[0].partitions[0].records) > LARGE


async def test_who_takes_nothing_is_waited_for_no_longer(live: Live) -> None:
    """Once the plane has closed it, a connection whose client reads nothing ends after STALL_SECONDS."""
    stuck, other = await live.connect(limit=1 << 14), await live.connect()
    stuck.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    topic = await other.topic()
    assert (await other.produce(topic, batch(os.urandom(LARGE)))).error_code == 0
    stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
    stuck.send("Fetch", 12, **fetch_fields(topic, 0))
    await eventually("it is stuck", lambda: any(each._down._held for each in relays(live)))
    assert live.broker is not None and live.broker._sockets is not None
    live.broker._sockets._present_plane.cut()
    await eventually("both are closed", lambda: not relays(live))


async def test_the_silent_are_closed_by_the_plane(live: Live) -> None:
    """max.connections and connections.max.idle.ms apply to connections with a relay, too."""
    await live.restart("max.connections=2")
    silent, busy = await live.connect(), await live.connect()
    for wire in (silent, busy, busy):
        assert (await wire.call("ApiVersions", 0)).error_code == 0
    assert live.broker is not None and live.broker._sockets is not None
    assert live.broker._sockets._close_longest_silent(1) == 1
    assert await silent.closed()
    assert (await busy.call("ApiVersions", 0)).error_code == 0
    await live.restart("connections.max.idle.ms=100")
    assert await (await live.connect()).closed()
    await eventually("both are closed", lambda: not relays(live) and of_the_plane(live) == 0)


async def test_a_stop_and_a_cut_reach_the_client(live: Live) -> None:
    wire = await live.connect()
    assert (await wire.call("ApiVersions", 0)).error_code == 0
    assert live.broker is not None
    live.broker.disconnect()
    assert await wire.closed()
    wire = await live.connect()
    assert (await wire.call("ApiVersions", 0)).error_code == 0
    broker, live.broker = live.broker, None
    async with asyncio.timeout(5):
        await broker.stop()
    assert await wire.closed()
