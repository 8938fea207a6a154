"""Slots for logins: a host that takes most of them does not keep other hosts out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.server.network import connection_quotas
from pybroker.server.network.connection_quotas import PendingLogins
from pybroker.server.network.listener import Listener
from tests.harness import eventually
from tests.server.cast import SETS
from tests.server.live import Live
from tests.server.test_connection_limits import ANN, served
from tests.server.test_sasl import log_in


@pytest.fixture
async def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A broker with ten slots for logins, where no login times out."""
    monkeypatch.setattr(connection_quotas, "LOGIN_GRACE_SECONDS", 86_400.0)
    made = Live(tmp_path, [*SETS, "max.connections=20", "sasl.enabled.mechanisms=PLAIN"])
    await made.start()
    yield made
    await made.stop()


def flood(live: Live, count: int) -> list[socket.socket]:
    """Connect from another address, without waiting for the broker."""
    assert live.broker is not None
    made = []
    for _ in range(count):
        sock = socket.socket()
        sock.bind(("127.0.0.2", 0))
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", live.broker.addresses["CLIENTS"].port))
        made.append(sock)
    return made


async def test_a_flood_of_one_host_keeps_no_other_out(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """The flood's oldest connections are closed for newcomers, and not every pause in accepting is logged."""
    assert live.broker is not None and live.broker._sockets is not None
    user = await live.connect("CLIENTS")
    await log_in(user, ANN)
    held = flood(live, 30)
    async with asyncio.timeout(60):
        for _ in range(5):
            held += flood(live, 10)
            wire = await live.connect("CLIENTS")
            await log_in(wire, ANN)
            assert await served(wire)
    for sock in held:
        sock.close()


async def test_a_host_that_is_alone_waits_and_is_told_of_once_a_minute(
    live: Live, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many clients of one address that connect at once are not reset: those over the limit wait to be accepted."""
    pauses, pause = [0], Listener._pause

    def counted(listener: Listener) -> None:
        pauses[0] += 1
        pause(listener)

    monkeypatch.setattr(Listener, "_pause", counted)
    held = flood(live, 15)
    for _ in range(3):
        await eventually("it pauses", lambda: any("accepting paused" in each for each in caplog.messages))
        before = pauses[0]
        held.pop(0).close()  # a waiting connection takes its slot, and accepting pauses again
        await eventually("accepting is paused twice more", lambda before=before: pauses[0] > before + 1)
    assert sum("accepting paused" in each for each in caplog.messages) == 1
    assert not any("took too long" in each for each in caplog.messages)
    for sock in held:
        sock.close()


def test_the_host_of_most_logins_has_no_grace_where_others_are() -> None:
    class One:
        last_active = 0.0

        def __init__(self, host: str) -> None:
            self.host, self.closed = host, False

        def close(self, reason: str | None) -> None:
            self.closed = True

    pending = PendingLogins()
    logins = [One(host) for host in ("a", "b", "b", "b", "c")]
    for each in logins:
        pending.add(each.host, each)
    assert pending.make_room(0.5, 1) == 0.5  # with b as the only host
    assert pending.make_room(0.5, 3) == 0 and [each.closed for each in logins] == [False, True, False, False, False]
    assert pending.make_room(0.5, 3) == 0.5  # b has half of the slots, and not more
    pending.discard("b", logins[2])
    pending.discard("b", logins[3])
    assert pending.make_room(1, 3) == 0 and logins[0].closed and not logins[4].closed
    pending.discard("c", logins[4])
    assert not pending and pending.make_room(1, 3) > 1e9
