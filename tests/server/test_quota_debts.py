"""A client that has used up its quota cannot get more of it through another connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.server.api import debts
from tests.harness import eventually
from tests.server.live import Live, batch
from tests.server.test_throttling import CLIENT, native, produced, quota

KB = 1000
SOME = batch(b"x" * 12 * KB)
MANY = batch(b"x" * 130 * KB)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def spent(live: Live) -> None:
    """Let a client with a quota of 10 kB/s write 130 kB and disconnect, which leaves a debt of three seconds."""
    wire = await quota(live, CLIENT, producer_byte_rate=10.0 * KB)
    await wire.create("t")
    wire = await live.connect()
    assert await produced(wire, MANY) > 0
    wire.writer.close()


@pytest.mark.parametrize("first", [None, "ApiVersions", "Metadata"])
async def test_another_connection_waits_for_what_is_owed(live: Live, first: str | None) -> None:
    """The new connection's first Produce waits, also after other requests, which are answered at once."""
    began = time.monotonic()
    await spent(live)
    wire = await live.connect()
    if first is not None:
        await wire.call(first, 1, **({"topics": []} if first == "Metadata" else {}))
        assert not debts_of(live)._held_bytes
    assert await produced(wire, batch(b"x")) >= 0
    assert time.monotonic() - began > 2


async def test_connections_pass_one_behind_the_other(live: Live) -> None:
    """Each connection waits for those before it too, and not only for the debt at its start."""
    began = time.monotonic()
    await spent(live)
    wires = [await live.connect() for _ in range(2)]
    await asyncio.gather(*(produced(wire, SOME) for wire in wires))
    assert time.monotonic() - began > 3 + 1.5 - 1


async def test_a_client_that_leaves_is_not_executed(live: Live) -> None:
    await spent(live)
    wire = await live.connect()
    wire.send("Produce", 9, acks=1, timeout_ms=5000, topic_data=[])
    await wire.writer.drain()
    held = debts_of(live)
    await eventually("it is held", lambda: held._held_bytes > 0)
    wire.writer.close()
    await eventually("it is gone", lambda: held._held_bytes == 0 and not held._lines)


async def test_what_is_held_has_a_bound(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debts, "HELD_BYTES_MAX", 16 * KB)
    await spent(live)
    first, second = await live.connect(), await live.connect()
    one = asyncio.create_task(produced(first, SOME))
    await eventually("it is held", lambda: debts_of(live)._held_bytes > 0)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await produced(second, SOME)
    assert await one >= 0


async def test_a_quota_that_is_taken_away_holds_nobody(live: Live) -> None:
    await spent(live)
    await quota(live, CLIENT, producer_byte_rate=1.0)
    wire = await live.connect()
    one = asyncio.create_task(produced(wire, SOME))
    await eventually("it is held", lambda: debts_of(live)._held_bytes > 0)
    await quota(live, CLIENT, producer_byte_rate=None)
    assert await asyncio.wait_for(one, 30) == 0


async def test_without_debts_the_plane_produces(tmp_path: Path) -> None:
    """Python executes the first Produce of a connection, to look up its quotas, and no other."""
    live = Live(tmp_path)
    await live.start()
    wire = await quota(live, CLIENT, producer_byte_rate=1e9)
    await wire.create("t")
    before = native(live)["Produce"]
    for _ in range(5):
        assert await produced(wire, batch(b"x")) == 0
    assert native(live)["Produce"] == (before[0] + 4, before[1] + 1) or native(live)["Produce"][0] == before[0] + 5
    await live.stop()


def debts_of(live: Live) -> debts.Debts:
    assert live.broker is not None and live.broker._sockets is not None
    found = live.broker._sockets._responder._responder  # type: ignore[union-attr]
    assert isinstance(found, debts.Debts)
    return found
