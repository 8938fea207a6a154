"""Failed password guesses are visible in the log, by user and address, and in a metric, beside any other errors."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.decisions.caller import Caller
from pybroker.server.network.closed_connections import CLIENTS_MAX, REASONS_MAX, USERS_MAX, Closings
from tests.harness import eventually
from tests.server.live import Live, Wire

CLIENTS = (
    "listeners=CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name=CLIENTS",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    "listener.name.clients.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="secret" user_admin="secret";',
)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path, [*CLIENTS, "connection.failed.authentication.delay.ms=1"])
    await made.start()
    yield made
    await made.stop()


async def guess(wire: Wire, user: str, password: str = "guess") -> None:
    assert (await wire.call("SaslHandshake", 1, mechanism="PLAIN")).error_code == 0
    answer = await wire.call("SaslAuthenticate", 2, auth_bytes=f"\0{user}\0{password}".encode())
    assert answer.error_code == 58 and await wire.closed()


async def test_guesses_are_seen_beside_harmless_ends(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Requests for many unknown mechanisms use up a client's log lines, but not those for its guesses."""
    for n in range(REASONS_MAX + 1):
        wire = await live.connect()
        assert (await wire.call("SaslHandshake", 1, mechanism=f"X{n}")).error_code == 33
        assert await wire.closed()
    caplog.clear()
    for _ in range(20):
        await guess(await live.connect(), "admin")
    (line,) = [each for each in caplog.messages if "admin" in each]
    assert line.startswith("login refused client=127.0.0.1:") and "user=admin" in line
    assert live.broker is not None and live.broker._sockets is not None
    logins = live.broker._sockets.logins
    assert (logins.credentials, logins.failed) == (20, 20 + REASONS_MAX + 1)
    caplog.clear()
    await live.stop()
    (line,) = [each for each in caplog.messages if "admin" in each]
    assert line.startswith("logins refused client=127.0.0.1 user=admin count=19 reason=")


async def test_a_guess_is_told_though_its_client_does_not_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The guess is logged although the client resets the connection before the refusal, which waits a minute here."""
    live = Live(tmp_path, [*CLIENTS, "connection.failed.authentication.delay.ms=60000"])
    await live.start()
    wire = await live.connect()
    assert (await wire.call("SaslHandshake", 1, mechanism="PLAIN")).error_code == 0
    wire.send("SaslAuthenticate", 2, auth_bytes=b"\0admin\0guess")
    await wire.writer.drain()
    sock = wire.writer.get_extra_info("socket")
    await eventually("it is logged", lambda: any("user=admin" in each for each in caplog.messages))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.writer.close()
    await live.stop()
    assert sum("login" in each for each in caplog.messages) == 1


def test_many_names_do_not_hide_the_one_that_is_guessed_at(caplog: pytest.LogCaptureFixture) -> None:
    """Guesses beyond a client's lines share one line, which has the most frequent user names."""
    closings = Closings()
    for n in range(REASONS_MAX):
        closings.tell("login refused", Caller("a", 7, "C"), "no", 0, f"first {n}", credentials=True)
    for n in range(100):
        for user in (f"made up {n}", "root"):
            closings.tell("login refused", Caller("a", 7, "C"), "no", 0, user, credentials=True)
    caplog.clear()
    closings.tell("connection closed", Caller("a", 7, "C"), "bad", 0)
    closings.close()
    first, line = caplog.messages
    assert first == "connection closed client=a:7 reason=bad"
    assert line.startswith("logins refused client=a users=") and "root" in line
    assert "count=199" in line and line.count("made up") < USERS_MAX


def test_many_addresses_with_harmless_ends_leave_room_for_a_guess(caplog: pytest.LogCaptureFixture) -> None:
    closings = Closings()
    for n in range(CLIENTS_MAX + 1):
        closings.tell("connection closed", Caller(f"h{n}", 7, "C"), "bad", 0)
    caplog.clear()
    closings.tell("login refused", Caller("a", 7, "C"), "no", 0, "admin", credentials=True)
    assert caplog.messages == ["login refused client=a:7 user=admin reason=no"]
    caplog.clear()
    closings.tell("login refused", Caller("a", 7, "C"), "no", 0, "admin", credentials=True)
    closings.close()
    assert caplog.messages == ["logins refused client=a user=admin count=1 reason=no"]
