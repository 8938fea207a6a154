"""OAUTHBEARER at a broker's listener: which tokens are accepted, how keys are read, and web servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import StartError
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.security.oauth import web
from pybroker.server.network import login
from tests.harness import eventually
from tests.rows import with_each
from tests.server.live import KEYS, Live, Wire, batch, values
from tests.server.test_alter_configs import BROKER, DELETE, SET, alter
from tests.server.test_tls import AUTHORITY, context, store
from tests.tokens import AUDIENCE, ISSUER, Signer, Web, by_hand, claims, jwks, say

SIGNER = Signer()
NEXT = Signer("k2", "ES256")
STRANGER = Signer()
OWN = "listener.name.clients.oauthbearer."
LISTENERS = [
    "listeners=OPEN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name=OPEN",
    "sasl.enabled.mechanisms=OAUTHBEARER",
]
EXPECTED = [
    f"sasl.oauthbearer.expected.audience={AUDIENCE}",
    f"listener.name.clients.sasl.oauthbearer.expected.issuer={ISSUER}",
]
INVALID = b'{"status":"invalid_token"}'


def of(url: str) -> list[str]:
    """The settings for keys at this URL."""
    return [*LISTENERS, *EXPECTED, f"{OWN}sasl.oauthbearer.jwks.endpoint.url={url}",
            f"org.apache.kafka.sasl.oauthbearer.allowed.urls={url}"]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(SIGNER))
    return path


Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts a broker with these settings."""
    made: list[Live] = []

    async def begin(*sets: str) -> Live:
        live = Live(tmp_path / "data", sets)
        made.append(live)
        await live.start()
        return live

    yield begin
    for live in made:
        if live.broker is not None:
            await live.stop()


def message(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


async def log_in(live: Live, token: str) -> Wire:
    """Log in with a valid token; return the connection."""
    wire = await live.connect("CLIENTS")
    assert (await wire.call("SaslHandshake", 1, mechanism="OAUTHBEARER")).error_code == 0
    answer = await wire.call("SaslAuthenticate", 2, auth_bytes=message(token))
    assert (answer.error_code, answer.auth_bytes) == (0, b"")
    assert 0 < answer.session_lifetime_ms <= 600_000
    return wire


async def refused(live: Live, token: str) -> None:
    """A bad token is answered as in RFC 7628, then with Kafka's error, and the connection ends."""
    wire = await live.connect("CLIENTS")
    await wire.call("SaslHandshake", 1, mechanism="OAUTHBEARER")
    answer = await wire.call("SaslAuthenticate", 2, auth_bytes=message(token))
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, INVALID, 0)
    asked_s = time.monotonic()
    answer = await wire.call("SaslAuthenticate", 2, auth_bytes=b"\x01")
    assert time.monotonic() - asked_s >= 0.1
    assert answer.error_code == errors.SASL_AUTHENTICATION_FAILED and answer.error_message == INVALID.decode()
    assert await wire.closed()


# -- accepted and refused tokens ---------------------------------------------------------------------------------------


async def test_who_has_a_token_is_served_as_everybody(start: Start, file: Path) -> None:
    live = await start(*of(file.as_uri()))
    wire = await log_in(live, SIGNER.token())
    assert (await wire.create("t")).error_code == 0
    assert (await wire.produce("t", batch(b"x"))).error_code == 0
    assert values((await wire.fetch("t", 0)).records) == [b"x"]


async def test_who_has_a_bad_one_is_not(start: Start, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the reason and the client's address, and no part of the token."""
    live = await start(*of(file.as_uri()))
    expired = SIGNER.token(lives_s=-100)
    for token in (expired, STRANGER.token(), by_hand({"alg": "none"}, claims())):
        await refused(live, token)
    assert "login refused" in caplog.text and "client=127.0.0.1:" in caplog.text and "it has expired" in caplog.text
    assert not any(part in caplog.text for part in expired.split("."))


async def test_the_user_of_a_token_is_a_principal(start: Start, file: Path) -> None:
    live = await start(*of(file.as_uri()), "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
                       "super.users=User:root")  # fmt: skip
    assert (await (await log_in(live, SIGNER.token("root"))).create("t")).error_code == 0
    denied = await (await log_in(live, SIGNER.token("ann"))).create("u")
    assert denied.error_code == errors.TOPIC_AUTHORIZATION_FAILED


async def test_a_token_by_a_handshake_without_headers(start: Start, file: Path) -> None:
    live = await start(*of(file.as_uri()))
    for token, good in ((SIGNER.token(), True), (STRANGER.token(), False)):
        wire = await live.connect("CLIENTS")
        await wire.call("SaslHandshake", 0, mechanism="OAUTHBEARER")
        wire.send_frame(message(token))
        assert await wire.frame() == (b"" if good else INVALID)
        if not good:
            wire.send_frame(b"\x01")
            assert await wire.closed()


async def test_tokens_that_nobody_signed_only_if_told_so(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    package = "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
    handler = f"{OWN}sasl.server.callback.handler.class={package}.OAuthBearerUnsecuredValidatorCallbackHandler"
    live = await start(*LISTENERS, handler)
    assert "no signature of a token is checked" in caplog.text
    await log_in(live, by_hand({"alg": "none"}, claims()))
    await refused(live, SIGNER.token())


# -- settings ----------------------------------------------------------------------------------------------------------

HTTPS = "https://keys.example/jwks"


@with_each(
    ("sets", "words"),
    [
        ([*LISTENERS, *EXPECTED], "sasl.oauthbearer.jwks.endpoint.url is not set"),
        (of(HTTPS)[:-1], "add it to org.apache.kafka.sasl.oauthbearer.allowed.urls"),
        ([*of(HTTPS)[:-1], f"org.apache.kafka.sasl.oauthbearer.allowed.urls={HTTPS}/"], "is not allowed: add it to"),
        (of("ftp://keys.example/"), "it takes file:///path, https://host/path or http://"),
        (of("file://host/etc/passwd"), "it takes file:"),
        (of("https://user:secret@keys.example/"), "it takes file:"),
        (of("https:///x"), "it takes file:"),
        (of("https://keys.example:x/"), "it takes file:"),
        ([s for s in of(HTTPS) if "audience" not in s], "sasl.oauthbearer.expected.audience is not set"),
        ([s for s in of(HTTPS) if "issuer" not in s], "sasl.oauthbearer.expected.issuer is not set"),
        ([*of(HTTPS), f"{OWN}sasl.server.callback.handler.class=com.evil.Handler"], "handler.class of the listener"),
        ([*of(HTTPS), f"{OWN}sasl.oauthbearer.clock.skew.seconds=-1"], "oauthbearer.clock.skew.seconds = '-1'"),
        ([*of(HTTPS), f"{OWN}sasl.jaas.config=com.sun.security.JndiLoginModule required;"], "login module must be one"),
    ],
    ids=lambda given: "" if isinstance(given, list) else given[:30],
)
def test_what_is_missing_or_wrong_stops_the_start(sets: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(None, sets)
    assert words in refused.value.message and "\n" not in refused.value.message


def test_audience_and_issuer_may_be_left_out_on_purpose() -> None:
    sets = [s for s in of(HTTPS) if "expected" not in s]
    config = BrokerConfig.load(
        None, [*sets, "sasl.oauthbearer.accept.any.audience=true", "sasl.oauthbearer.accept.any.issuer=true"]
    )
    oauth = config.sasl["CLIENTS"].oauth
    assert oauth is not None and (oauth.audience, oauth.issuer) == (None, None) and config.warnings == []


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"", "not JSON"), (b'{"keys": []}', "no public key"), (b"x" * (2 << 20), "more than")],
)
async def test_a_file_of_no_use_stops_the_start(
    start: Start, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartError, match=words):
        await start(*of(path.as_uri()))


# -- keys that change --------------------------------------------------------------------------------------------------


async def test_keys_of_a_web_server_and_their_rotation(start: Start) -> None:
    """A token with a new key makes the broker read the keys again before it answers; then the old key is refused."""
    with Web(jwks(SIGNER)) as server:
        live = await start(*of(server.url))
        await log_in(live, SIGNER.token())
        server.answer = jwks(NEXT)
        await log_in(live, NEXT.token())
        await refused(live, SIGNER.token())
        assert 2 <= server.asked <= 4


async def test_a_login_by_tls_that_waits_for_keys(start: Start, tmp_path: Path) -> None:
    """Requests sent with the login, in one TLS record, wait for the login too, and are answered."""
    with Web(jwks(SIGNER)) as server:
        pem = store(tmp_path, "broker", AUTHORITY.sign("localhost"))
        live = await start(
            *[s.replace("SASL_PLAINTEXT", "SASL_SSL") for s in of(server.url)], "ssl.keystore.type=PEM",
            f"ssl.keystore.location={pem}",
        )  # fmt: skip
        wire = await live.connect("CLIENTS", context())
        server.answer = jwks(NEXT)
        assert (await wire.call("SaslHandshake", 1, mechanism="OAUTHBEARER")).error_code == 0
        asked = [(KEYS["SaslAuthenticate"], 2, m.SaslAuthenticateRequest(auth_bytes=message(NEXT.token())))]
        asked += [(KEYS["Metadata"], 12, m.MetadataRequest(topics=[]))] * 3
        frames = [codec.encode_request(key, version, 9, "c", request) for key, version, request in asked]
        wire.writer.write(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        _, answer = await wire.receive("SaslAuthenticate", 2)
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        for _ in range(3):
            assert (await wire.receive("Metadata", 12))[1].brokers


async def test_strangers_who_hold_the_memory_for_logins_keep_no_token_out(start: Start, file: Path) -> None:
    """A token of 12 KB, as an issuer with many groups makes, is accepted while strangers hold the memory for logins."""
    live = await start(*of(file.as_uri()))
    held, wires = login.HELD_BYTES_MAX, []
    while held > 0:
        size = min(held + login.TOKEN_FRAME_BYTES, 512 << 10)
        wires.append(await live.connect("CLIENTS"))
        wires[-1].writer.write(struct.pack(">i", 512 << 10) + bytes(size - 4))
        held -= size - login.TOKEN_FRAME_BYTES
    assert live.broker is not None and live.broker._sockets is not None
    logins = live.broker._sockets.logins
    await eventually("all of it is held", lambda: logins.held_bytes == login.HELD_BYTES_MAX)
    token = SIGNER.token(groups=["g" * 20] * 380)
    assert 12_000 < len(token) < login.TOKEN_FRAME_BYTES
    await log_in(live, token)
    for wire in wires:
        wire.writer.close()


async def test_keys_of_a_listener_that_goes_are_not_read_any_more(start: Start) -> None:
    """Keys of a removed listener are no longer read; a refused or only validated listener never reads its keys."""

    def readers() -> int:
        return sum(thread.name == "pybroker-jwks" for thread in threading.enumerate())

    with Web(jwks(SIGNER)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        live = await start(*of(server.url))
        await log_in(live, SIGNER.token())
        wire, own, (before, asked) = await live.connect("OPEN"), "listener.name.new.sasl.", (readers(), server.asked)

        async def add(port: int, **how: bool) -> int:
            told = {
                "listeners": f"{LISTENERS[0].partition('=')[2]},NEW://127.0.0.1:{port}",
                "listener.security.protocol.map": f"{LISTENERS[1].partition('=')[2]},NEW:SASL_PLAINTEXT",
                f"{own}oauthbearer.jwks.endpoint.url": server.url, f"{own}oauthbearer.expected.audience": AUDIENCE,
                f"{own}oauthbearer.expected.issuer": ISSUER, f"{own}oauthbearer.jwks.endpoint.refresh.ms": "4321",
            }  # fmt: skip
            changes = [(name, SET, text) for name, text in told.items()]
            code: int = (await alter(wire, BROKER, "1001", *changes, **how)).error_code
            return code

        assert await add(other.getsockname()[1]) == errors.INVALID_CONFIG
        assert await add(0, validate_only=True) == 0
        assert (readers(), server.asked) == (before, asked)
        assert await add(0) == 0
        assert readers() == before + 1
        assert (await alter(wire, BROKER, "1001", ("listeners", DELETE, None))).error_code == 0
        await eventually("its keys are not read", lambda: readers() == before)
        await log_in(live, SIGNER.token())


async def test_keys_of_a_file_and_their_rotation(start: Start, file: Path) -> None:
    live = await start(*of(file.as_uri()))
    await log_in(live, SIGNER.token())
    file.write_bytes(jwks(SIGNER, NEXT))
    await log_in(live, NEXT.token())
    await log_in(live, SIGNER.token())


async def test_keys_are_read_again_from_time_to_time(start: Start) -> None:
    """A withdrawn key is refused after the next refresh, even if no token has an unknown key."""
    with Web(jwks(SIGNER)) as server:
        live = await start(*of(server.url), "sasl.oauthbearer.jwks.endpoint.refresh.ms=1000")
        await log_in(live, SIGNER.token())
        server.answer = jwks(NEXT)
        before = server.asked
        await eventually("they were read again", lambda: server.asked > before + 1)  # the second one follows the first
        await refused(live, SIGNER.token())


async def test_strangers_do_not_have_keys_read_at_their_pace(start: Start) -> None:
    """Forty tokens with unknown keys cause few readings, as the pause between two readings doubles."""
    with Web(jwks(SIGNER)) as server:
        live = await start(*of(server.url), "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=400")
        await log_in(live, SIGNER.token())
        tokens = [Signer(f"x{number}", "ES256").token() for number in range(40)]
        began_s = time.monotonic()
        await asyncio.gather(*(refused(live, token) for token in tokens))
        assert server.asked <= 3 + (time.monotonic() - began_s) / 0.1
        await log_in(live, SIGNER.token())


# -- a web server that misbehaves --------------------------------------------------------------------------------------


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Send a header one byte at a time, without end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


def hang(handler: BaseHTTPRequestHandler) -> None:
    """Send nothing until the client has left."""
    handler.connection.recv(1)


def flood(handler: BaseHTTPRequestHandler) -> None:
    """Send 100 MB."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(bytes(1 << 20))


def redirect(handler: BaseHTTPRequestHandler) -> None:
    say(handler, b"", 302, Location="file:///etc/passwd")


MISBEHAVED: dict[str, tuple[Any, str]] = {
    "hangs": (hang, "no answer within 1 s"),
    "drips": (drip, "no answer within 1 s"),
    "floods": (flood, "more than 1048576 bytes"),
    "says it floods": (lambda h: say(h, b"", Content_Length=str(1 << 40)), "it is not JSON"),
    "redirects": (redirect, "status 302; redirects are not followed"),
    "fails": (lambda handler: say(handler, b"secret of the server", 500), "status 500"),
    "says nonsense": (b"<html>secret of the server</html>", "it is not JSON"),
    "has no keys": (b'{"keys": []}', "no public key"),
    "speaks no HTTP": (lambda handler: handler.wfile.write(b"\x00" * 100 + b"\r\n"), "its response is not valid HTTP"),
    "hangs up": (lambda handler: handler.connection.close(), "it closed the connection"),
}


@pytest.mark.parametrize("name", MISBEHAVED)
async def test_a_web_server_that_misbehaves(
    start: Start, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the web server misbehaves the broker starts and serves and its event loop does not block; logins by token
    end without an answer. Once the server works, they succeed."""
    monkeypatch.setattr(web, "SECONDS_MAX", 1.0)
    answer, words = MISBEHAVED[name]
    with Web(answer) as server:
        live = await start(*of(server.url))
        wire = await live.connect("CLIENTS")
        await wire.call("SaslHandshake", 1, mechanism="OAUTHBEARER")
        wire.send("SaslAuthenticate", 2, auth_bytes=message(SIGNER.token()))
        other = await live.connect("OPEN")
        assert (await other.create("t")).error_code == 0
        assert name not in ("hangs", "drips") or not wire.reader.at_eof(), "the client still waits"
        assert await wire.closed(), "without an answer, as the token may be valid"
        assert "token keys not read" in caplog.text and words in caplog.text
        assert "secret of the server" not in caplog.text
        server.answer = jwks(SIGNER)

        async def comes_in() -> bool:
            try:
                await log_in(live, SIGNER.token())
            except asyncio.IncompleteReadError:
                return False
            return True

        await eventually("it comes in", comes_in, every_s=0.05)


async def test_keys_stay_while_the_server_is_down(start: Start) -> None:
    with Web(jwks(SIGNER)) as server:
        live = await start(*of(server.url))
        await log_in(live, SIGNER.token())
        server.answer = lambda handler: say(handler, b"", 503)
        await refused(live, NEXT.token())
        await log_in(live, SIGNER.token())


async def test_https_checks_the_certificate(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Web(jwks(SIGNER)) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(store(tmp_path, "keys", AUTHORITY.sign("localhost")))
        server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
        url = server.url.replace("http:", "https:")
        live = await start(*of(url))
        await eventually("it is told", lambda: "its certificate is refused" in caplog.text)
        await live.stop()
        (tmp_path / "ca.pem").write_bytes(AUTHORITY.certificate)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        caplog.clear()
        await live.start()
        await log_in(live, SIGNER.token())
        assert "weak tokens" not in caplog.text


async def test_what_is_not_protected_is_told(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with Web(json.dumps({"keys": []}).encode()) as server:
        await start(*[s for s in of(server.url) if "expected" not in s],
                    "sasl.oauthbearer.accept.any.audience=true", "sasl.oauthbearer.accept.any.issuer=true")  # fmt: skip
    for words in ("use an https URL", "accept.any.audience", "accept.any.issuer"):
        assert words in caplog.text
