"""Logins that expire, and re-authentication on the open connection (KIP-368), in the data plane and the event loop."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.security.login import Account
from pybroker.server.api.responder import HEARD_MS
from tests.server.live import Live, Wire, batch, fetch_fields, produce_data, values
from tests.server.test_oauthbearer import SIGNER, message, of
from tests.server.test_sasl import ALICE, SETS, give, log_in
from tests.tokens import Web, jwks

LIFE_MS = 1500


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A broker whose logins last LIFE_MS with PLAIN, a minute with SCRAM-SHA-256, forever with SCRAM-SHA-512."""
    own = "listener.name.clients."
    made = Live(tmp_path / "data", [
        *SETS, "connections.max.reauth.ms=0", f"{own}connections.max.reauth.ms=60000",
        f"{own}plain.connections.max.reauth.ms={LIFE_MS}", f"{own}scram-sha-512.connections.max.reauth.ms=0",
    ])  # fmt: skip
    await made.start()
    yield made
    await made.stop()


async def session(live: Live, account: Account = ALICE) -> Wire:
    wire = await live.connect("CLIENTS")
    await log_in(wire, account)
    return wire


async def over(began_s: float, life_ms: int = LIFE_MS) -> None:
    """Wait until a login with this lifetime has expired."""
    await asyncio.sleep(max(0.0, began_s + life_ms / 1000 + 0.01 - time.monotonic()))


async def again(wire: Wire, token: bytes = b"\0alice\0alice-secret", mechanism: str = "PLAIN") -> Any:
    """Log in again; return the last answer."""
    shaken = await wire.call("SaslHandshake", 1, mechanism=mechanism)
    if shaken.error_code:
        return shaken
    return await wire.call("SaslAuthenticate", 2, auth_bytes=token)


async def test_the_client_is_told_how_long_a_login_holds(live: Live) -> None:
    """The lifetime is the mechanism's setting, else the listener's, else the broker's; old versions lack the field."""
    wire = await live.connect("CLIENTS")
    await wire.call("SaslHandshake", 1, mechanism="PLAIN")
    answer = await wire.call("SaslAuthenticate", 2, auth_bytes=b"\0alice\0alice-secret")
    assert answer.session_lifetime_ms == LIFE_MS
    await give(await live.connect("OPEN"), "carol")
    for mechanism, life_ms in (("SCRAM-SHA-256", 60_000), ("SCRAM-SHA-512", 0)):
        wire = await live.connect("CLIENTS")
        exchange = Account(mechanism, "carol", "pw").begin()
        await wire.call("SaslHandshake", 1, mechanism=mechanism)
        said = exchange.start()
        lives = []
        while said is not None:
            answer = await wire.call("SaslAuthenticate", 2, auth_bytes=said)
            lives.append(answer.session_lifetime_ms)
            said = exchange.step(bytes(answer.auth_bytes))
        assert lives == [0, life_ms]


@pytest.mark.parametrize(
    ("name", "version"), [("Metadata", 12), ("Produce", 9), ("Fetch", 12), ("ApiVersions", 3), ("SaslAuthenticate", 2)]
)
async def test_what_is_asked_after_the_end_ends_the_connection(live: Live, name: str, version: int) -> None:
    """Any request after the login has expired closes the connection, also one that the native plane executes."""
    began_s = time.monotonic()
    wire, idle = await session(live), await session(live)
    assert (await wire.create("t")).error_code == 0
    assert (await wire.produce("t", batch(b"x"))).error_code == 0
    assert values((await wire.fetch("t", 0)).records) == [b"x"]
    await over(time.monotonic())
    assert time.monotonic() - began_s >= LIFE_MS / 1000
    fields: dict[str, Any] = {
        "Metadata": {"topics": []}, "Produce": {"acks": -1, "topic_data": produce_data("t", {0: batch(b"late")})},
        "Fetch": fetch_fields("t", 0), "ApiVersions": {"client_software_name": "c", "client_software_version": "1"},
        "SaslAuthenticate": {"auth_bytes": b"\0alice\0alice-secret"},
    }[name]  # fmt: skip
    wire.send(name, version, **fields)
    assert await wire.closed()
    assert (await again(idle)).error_code == 0, "a client without a request stays, and may log in again"
    assert values((await idle.fetch("t", 0)).records) == [b"x"]
    assert live.broker is not None and live.broker._sockets is not None and live.broker._sockets.logins.expired == 1


async def test_who_logs_in_again_goes_on(live: Live) -> None:
    """A new login on the same connection lasts as long again, and no request around it is lost."""
    wire = await session(live)
    began_s = time.monotonic()
    assert (await wire.create("t")).error_code == 0
    await asyncio.sleep(LIFE_MS / 1000 * 0.7)
    asked = [
        ("Produce", 9, {"acks": -1, "topic_data": produce_data("t", {0: batch(b"a")})}),
        ("SaslHandshake", 1, {"mechanism": "PLAIN"}),
        ("Produce", 9, {"acks": -1, "topic_data": produce_data("t", {0: batch(b"b")})}),
        ("SaslAuthenticate", 2, {"auth_bytes": b"\0alice\0alice-secret"}),
        ("Produce", 9, {"acks": -1, "topic_data": produce_data("t", {0: batch(b"c")})}),
        ("Metadata", 12, {"topics": []}),
    ]
    numbers = [wire.send(name, version, **fields) for name, version, fields in asked]
    for number, (name, version, _) in zip(numbers, asked, strict=True):
        answered, answer = await wire.receive(name, version)
        assert answered == number and not getattr(answer, "error_code", 0)
    await over(began_s)
    assert values((await wire.fetch("t", 0)).records) == [b"a", b"b", b"c"]
    await over(time.monotonic())
    wire.send("Metadata", 12, topics=[])
    assert await wire.closed()


async def test_who_waits_for_news_is_not_interrupted(live: Live) -> None:
    """A Fetch that was parked before the login expired is answered; the next one closes the connection."""
    wire, other = await session(live), await live.connect("OPEN")
    assert (await other.create("t")).error_code == 0
    wire.send("Fetch", 12, **fetch_fields("t", 0, max_wait_ms=30_000))
    await over(time.monotonic())
    assert (await other.produce("t", batch(b"x"))).error_code == 0
    _, answer = await wire.receive("Fetch", 12)
    assert values(answer.responses[0].partitions[0].records) == [b"x"]
    wire.send("Fetch", 12, **fetch_fields("t", 1))
    assert await wire.closed()


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (b"\0alice\0guess", "Authentication failed: Invalid username or password"),
        (b'\0bob\0b;"o=b', "Cannot change principals during re-authentication from User.alice: User.bob"),
    ],
)
async def test_who_fails_is_told_so_and_gone(live: Live, token: bytes, words: str) -> None:
    """The refusal comes after the usual delay, and requests sent behind it are not executed."""
    wire = await session(live)
    assert (await wire.call("SaslHandshake", 1, mechanism="PLAIN")).error_code == 0
    asked_s = time.monotonic()
    wire.send("SaslAuthenticate", 2, auth_bytes=token)
    wire.send("Produce", 9, acks=-1, topic_data=produce_data("t", {0: batch(b"x")}))
    wire.send("Metadata", 12, topics=[])
    _, answer = await wire.receive("SaslAuthenticate", 2)
    assert time.monotonic() - asked_s >= 0.1
    assert (answer.error_code, answer.error_message) == (errors.SASL_AUTHENTICATION_FAILED, words)
    assert await wire.closed()
    assert time.monotonic() - asked_s >= 0.1 + HEARD_MS / 2000, "the client had time to read the answer"
    assert live.broker is not None and live.broker._sockets is not None and live.broker._sockets.logins.failed == 1


async def test_another_mechanism_ends_the_connection(live: Live) -> None:
    await give(await live.connect("OPEN"), "alice", "alice-secret")
    wire = await session(live)
    answer = await wire.call("SaslHandshake", 1, mechanism="SCRAM-SHA-256")
    assert (answer.error_code, answer.mechanisms) == (errors.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
    assert await wire.closed()


async def test_not_more_often_than_once_a_second(live: Live) -> None:
    """A client that logs in again within a second gets ILLEGAL_SASL_STATE, and stays connected."""
    wire = await session(live)
    began_s = time.monotonic()
    assert (await again(wire)).error_code == 0
    assert (await again(wire)).error_code == errors.ILLEGAL_SASL_STATE
    assert (await wire.call("SaslAuthenticate", 2, auth_bytes=b"")).error_code == errors.ILLEGAL_SASL_STATE
    await asyncio.sleep(max(0.0, began_s + 1.01 - time.monotonic()))
    assert (await again(wire)).error_code == 0


async def test_a_login_by_a_handshake_without_headers_ends_too(live: Live) -> None:
    """A login by SaslHandshake v0 expires and cannot be renewed."""
    wire = await live.connect("CLIENTS")
    await wire.call("SaslHandshake", 0, mechanism="PLAIN")
    wire.send_frame(b"\0alice\0alice-secret")
    assert await wire.frame() == b""
    ended_s = time.monotonic()
    assert (await wire.call("SaslHandshake", 0, mechanism="PLAIN")).error_code == errors.ILLEGAL_SASL_STATE
    await over(ended_s)
    wire.send("SaslHandshake", 0, mechanism="PLAIN")
    assert await wire.closed()


@pytest.mark.parametrize("size", [10, 4, 2])
async def test_half_a_handshake_ends_the_connection(live: Live, size: int) -> None:
    wire = await session(live)
    wire.send_frame(struct.pack(">hhih", 17, 1, 1, -1)[:size])
    assert await wire.closed()
    assert (await (await session(live)).create("t")).error_code == 0


async def test_a_deleted_user_is_let_in_no_more(live: Live) -> None:
    admin = await live.connect("OPEN")
    await give(admin, "carol")
    wire = await session(live, Account("SCRAM-SHA-256", "carol", "pw"))
    kind = m.AlterUserScramCredentialsRequest
    await admin.call("AlterUserScramCredentials", 0, deletions=[kind.Deletions(name="carol", mechanism=1)])
    with pytest.raises(errors.KafkaError, match="invalid credentials"):
        await log_in(wire, Account("SCRAM-SHA-256", "carol", "pw"))
    assert await wire.closed()


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def by_token(tmp_path: Path) -> AsyncIterator[Live]:
    with Web(jwks(SIGNER)) as server:
        made = Live(tmp_path / "data", of(server.url))
        await made.start()
        yield made
        await made.stop()


async def test_a_token_ends_though_no_setting_says_so(by_token: Live) -> None:
    """A login by token expires with its token, without a setting, and another token of the user renews it."""
    wire = await by_token.connect("CLIENTS")
    answer = await again(wire, message(SIGNER.token(lives_s=3)), "OAUTHBEARER")
    began_s = time.monotonic()
    assert 1000 < answer.session_lifetime_ms <= 3000
    answer = await again(wire, message(SIGNER.token(lives_s=600)), "OAUTHBEARER")
    assert answer.session_lifetime_ms > 500_000
    await over(began_s, 3000)
    assert (await wire.create("t")).error_code == 0
    short = await by_token.connect("CLIENTS")
    answer = await again(short, message(SIGNER.token(lives_s=2)), "OAUTHBEARER")
    await over(time.monotonic(), answer.session_lifetime_ms)
    short.send("Metadata", 12, topics=[])
    assert await short.closed()


async def test_another_users_token_renews_nothing(by_token: Live) -> None:
    wire = await by_token.connect("CLIENTS")
    await again(wire, message(SIGNER.token()), "OAUTHBEARER")
    answer = await again(wire, message(SIGNER.token("root")), "OAUTHBEARER")
    assert answer.error_code == errors.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Cannot change principals during re-authentication from User.alice: User.root"
    assert await wire.closed()
