"""Logins at a SASL listener: which succeed, the answers to those that fail, and limits for clients not logged in."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.wire import put_uvarint
from pybroker.security.login import Account, Login
from pybroker.security.scram import HASHES, salted
from pybroker.server.network import login
from tests.harness import eventually
from tests.server.live import KEYS, Live, Wire, batch, values

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETS = [
    "listeners=OPEN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name=OPEN",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f'listener.name.clients.plain.sasl.jaas.config={MODULE} required user_alice="alice-secret" user_bob="b;\\"o=b";',
]
ALICE = Account("PLAIN", "alice", "alice-secret")
SALT = b"0123456789abcdef"
INVALID = "Authentication failed: Invalid username or password"
SCRAM_INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism "


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data", SETS)
    await made.start()
    yield made
    await made.stop()


async def log_in(wire: Wire, account: Account) -> None:
    """Log in as this project's client does. Raises KafkaError if it is refused."""
    steps = Login(account, "the broker")
    message, version = steps.start(), 1
    while message is not None:
        name = type(message).SCHEMA.name.removesuffix("Request")
        fields = {key: getattr(message, key) for key in ("mechanism", "auth_bytes") if hasattr(message, key)}
        message = steps.step(await wire.call(name, version, **fields))


def upsertion(user: str, number: int, mechanism: str, password: str = "pw", iterations: int = 4096) -> Any:
    kind = m.AlterUserScramCredentialsRequest.Upsertions
    key = salted(mechanism, password, SALT, iterations)
    return kind(name=user, mechanism=number, iterations=iterations, salt=SALT, salted_password=key)


async def give(wire: Wire, user: str, password: str = "pw") -> None:
    """Give a user SCRAM credentials of both kinds."""
    made = [upsertion(user, number, mechanism, password) for number, mechanism in enumerate(HASHES, 1)]
    answer = await wire.call("AlterUserScramCredentials", 0, upsertions=made)
    assert [(r.user, r.error_code) for r in answer.results] == [(user, 0)]


# -- logins that succeed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "account", [ALICE, Account("PLAIN", "bob", 'b;"o=b'), *(Account(mechanism, "carol", "pw") for mechanism in HASHES)]
)
async def test_who_logs_in_is_served_as_everybody(live: Live, account: Account) -> None:
    await give(await live.connect("OPEN"), "carol")
    wire = await live.connect("CLIENTS")
    assert {17, 36} <= {key.api_key for key in (await wire.call("ApiVersions", 2)).api_keys}
    await log_in(wire, account)
    assert (await wire.create("t")).error_code == 0
    assert (await wire.produce("t", batch(b"x"))).error_code == 0
    assert values((await wire.fetch("t", 0)).records) == [b"x"]


async def test_tokens_without_a_header(live: Live) -> None:
    """SaslHandshake v0, as clients before Kafka 1.0: an empty token accepts, the end of the connection refuses."""
    for password, accepted in ((b"alice-secret", True), (b"no", False)):
        wire = await live.connect("CLIENTS")
        answer = await wire.call("SaslHandshake", 0, mechanism="PLAIN")
        assert (answer.error_code, sorted(answer.mechanisms)) == (0, ["PLAIN", *HASHES])
        wire.send_frame(b"\0alice\0" + password)
        if accepted:
            assert await wire.frame() == b""
            assert (await wire.create("t")).error_code == 0
        else:
            assert await wire.closed()


@pytest.mark.skipif(
    int(Path("/proc/sys/net/core/somaxconn").read_text()) < 400, reason="the system gives no listener such a backlog"
)
async def test_many_who_connect_at_once_are_reset_by_nobody(live: Live) -> None:
    """Four hundred clients that send all their data before they are accepted get answers. With Kafka's backlog of 50,
    Linux resets some of them: those with a SYN cookie, when their second segment arrives."""

    async def one() -> None:
        wire = await live.connect("CLIENTS")
        wire.send("SaslHandshake", 1, mechanism="PLAIN")
        wire.send("SaslAuthenticate", 1, auth_bytes=b"\0alice\0alice-secret")
        wire.send("ApiVersions", 0)
        for _ in range(3):
            await wire.frame()
        wire.writer.close()

    await asyncio.gather(*(one() for _ in range(400)))


async def test_what_is_sent_right_behind_a_login_is_answered_behind_it(live: Live) -> None:
    """No byte sent right behind a login is lost, however the bytes are split."""
    for step in (1, 7, 10_000):
        wire = await live.connect("CLIENTS")
        frames = [
            codec.encode_request(KEYS["SaslHandshake"], 1, 1, "c", m.SaslHandshakeRequest(mechanism="PLAIN")),
            codec.encode_request(
                KEYS["SaslAuthenticate"], 2, 2, "c", m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret")
            ),
            codec.encode_request(KEYS["Metadata"], 12, 3, "c", m.MetadataRequest(topics=[])),
            codec.encode_request(KEYS["ApiVersions"], 3, 4, "c", m.ApiVersionsRequest(
                client_software_name="c", client_software_version="1")),
        ]  # fmt: skip
        data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
        for at in range(0, len(data), step):
            wire.writer.write(data[at : at + step])
            await asyncio.sleep(0)
        for name, version, number in (
            ("SaslHandshake", 1, 1), ("SaslAuthenticate", 2, 2), ("Metadata", 12, 3), ("ApiVersions", 3, 4)
        ):  # fmt: skip
            answered, answer = await wire.receive(name, version)
            assert answered == number and getattr(answer, "error_code", 0) == 0


# -- logins that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (b"\0alice\0wrong", INVALID),
        (b"\0nobody\0alice-secret", INVALID),
        (b"bob\0alice\0alice-secret", "Authentication failed: Client requested an authorization id that is different"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"alice\0alice-secret", "Authentication failed: Invalid SASL/PLAIN response"),
        (b"\0alice\0alice-secret\0", "Authentication failed: Invalid SASL/PLAIN response"),
        (b"\0ali\xffce\0x", "Authentication failed: Invalid SASL/PLAIN response"),
        (b"", "Authentication failed: Invalid SASL/PLAIN response"),
    ],
)
async def test_plain_says_no_in_kafkas_words(live: Live, token: bytes, words: str) -> None:
    wire = await live.connect("CLIENTS")
    await wire.call("SaslHandshake", 1, mechanism="PLAIN")
    asked_s = time.monotonic()
    answer = await wire.call("SaslAuthenticate", 2, auth_bytes=token)
    assert time.monotonic() - asked_s >= 0.1, "a refused login is answered late"
    assert answer.error_code == errors.SASL_AUTHENTICATION_FAILED
    assert answer.error_message.startswith(words) and b"secret" not in answer.auth_bytes
    assert await wire.closed()


async def test_a_user_who_is_deleted_logs_in_no_more(live: Live) -> None:
    """A deleted user cannot log in; a client that is logged in stays."""
    admin = await live.connect("OPEN")
    await give(admin, "carol")
    held = await live.connect("CLIENTS")
    await log_in(held, Account("SCRAM-SHA-512", "carol", "pw"))
    kind = m.AlterUserScramCredentialsRequest.Deletions
    answer = await admin.call(
        "AlterUserScramCredentials", 0, deletions=[kind(name="carol", mechanism=number) for number in (1, 2)]
    )
    assert [result.error_code for result in answer.results] == [0]
    wire = await live.connect("CLIENTS")
    with pytest.raises(errors.KafkaError, match=SCRAM_INVALID + "SCRAM-SHA-512"):
        await log_in(wire, Account("SCRAM-SHA-512", "carol", "pw"))
    assert (await held.create("t")).error_code == 0


async def test_credentials_survive_a_restart(live: Live) -> None:
    await give(await live.connect("OPEN"), "grün ö/*", "pw")
    await give(await live.connect("OPEN"), "dave", "pw")
    await live.stop()
    await live.start()
    await log_in(await live.connect("CLIENTS"), Account("SCRAM-SHA-256", "dave", "pw"))
    answer = await (await live.connect("OPEN")).call("DescribeUserScramCredentials", 0, users=None)
    assert [result.user for result in answer.results] == ["dave", "grün ö/*"]


@pytest.mark.parametrize(
    ("requests", "last"),
    [
        ([("Metadata", 12, {"topics": []})], None),
        ([("ApiVersions", 0, {}), ("ApiVersions", 0, {})], None),
        ([("SaslAuthenticate", 1, {"auth_bytes": b"\0alice\0alice-secret"})], None),
        ([("SaslHandshake", 1, {"mechanism": "GSSAPI"})], errors.UNSUPPORTED_SASL_MECHANISM),
        ([("SaslHandshake", 1, {"mechanism": "plain"})], errors.UNSUPPORTED_SASL_MECHANISM),
        ([("SaslHandshake", 1, {"mechanism": "PLAIN"})] * 2, errors.ILLEGAL_SASL_STATE),
        ([("SaslHandshake", 1, {"mechanism": "PLAIN"}), ("Produce", 9, {"topic_data": []})], None),
        ([("SaslHandshake", 1, {"mechanism": "PLAIN"}), ("ApiVersions", 0, {})], None),
    ],
)
async def test_whatever_comes_out_of_turn_ends_the_connection(
    live: Live, requests: list[tuple[str, int, dict[str, Any]]], last: int | None
) -> None:
    wire = await live.connect("CLIENTS")
    for name, version, fields in requests[:-1]:
        assert (await wire.call(name, version, **fields)).error_code == 0
    name, version, fields = requests[-1]
    wire.send(name, version, **fields)
    if last is not None:
        _, answer = await wire.receive(name, version)
        assert answer.error_code == last
        assert sorted(answer.mechanisms) in ([], ["PLAIN", *HASHES])
    assert await wire.closed()


async def test_versions_may_be_asked_again_after_a_refusal(live: Live) -> None:
    """After an unsupported version or an invalid client name, the client can send ApiVersions again."""
    wire = await live.connect("CLIENTS")
    wire.send_frame(struct.pack(">hhih", KEYS["ApiVersions"], 99, 1, -1))
    refused = await wire.frame()
    assert struct.unpack(">ih", refused[:6]) == (1, errors.UNSUPPORTED_VERSION)
    answer = await wire.call("ApiVersions", 3, client_software_name="!", client_software_version="1")
    assert answer.error_code == errors.INVALID_REQUEST
    answer = await wire.call("ApiVersions", 3, client_software_name="c", client_software_version="1")
    assert answer.error_code == 0
    await log_in(wire, ALICE)


@pytest.mark.parametrize("listener", ["OPEN", "CLIENTS"])
async def test_who_need_not_log_in_is_told_so_and_stays(live: Live, listener: str) -> None:
    wire = await live.connect(listener)
    if listener == "CLIENTS":
        await log_in(wire, ALICE)
    assert (await wire.call("SaslHandshake", 1, mechanism="PLAIN")).error_code == errors.ILLEGAL_SASL_STATE
    assert (await wire.call("SaslAuthenticate", 2, auth_bytes=b"")).error_code == errors.ILLEGAL_SASL_STATE
    assert (await wire.create("t")).error_code == 0


# -- strangers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", (512 << 10) + 1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", 0),
        struct.pack(">ihhi", 8, 18, 3, 1),
        struct.pack(">ihhih", 10, 17, 1, 1, -1),
        struct.pack(">ihhihh", 12, 17, 1, 1, -1, 32767),
        struct.pack(">ihhihi", 14, 36, 1, 1, -1, 2**31 - 1),
        struct.pack(">ihhih", 10, 17, 9, 1, -1),
        struct.pack(">ihhih", 10, 32000, 0, 1, -1),
    ],
)
async def test_nonsense_ends_the_connection(live: Live, data: bytes) -> None:
    wire = await live.connect("CLIENTS")
    wire.writer.write(data)
    wire.writer.write_eof()
    assert await wire.closed()
    await log_in(await live.connect("CLIENTS"), ALICE)


async def test_a_login_that_is_cut_anywhere_leaves_nothing(live: Live) -> None:
    assert live.broker is not None
    frames = [
        codec.encode_request(KEYS["SaslHandshake"], 1, 1, "c", m.SaslHandshakeRequest(mechanism="PLAIN")),
        codec.encode_request(
            KEYS["SaslAuthenticate"], 2, 2, "c", m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret")
        ),
    ]
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    for end in range(len(data)):
        wire = await live.connect("CLIENTS")
        wire.writer.write(data[:end])
        wire.writer.close()
    await gone(live)


async def gone(live: Live) -> None:
    """Wait until no connection is open and no memory is held for logins."""
    assert live.broker is not None and live.broker._sockets is not None
    sockets = live.broker._sockets
    await eventually("nobody is there", lambda: len(sockets) == 0 and sockets.logins.held_bytes == 0)


async def test_a_stranger_has_nobody_wait_for_a_frame_of_tagged_fields(live: Live) -> None:
    """Half a megabyte of tagged fields in the header of ApiVersions or SaslAuthenticate is not parsed."""
    tags = put_uvarint(100_000) + b"".join(put_uvarint(tag) + b"\0" for tag in range(100_000))
    for key, version, began in ((18, 3, False), (18, 4, False), (36, 2, True)):
        wire = await live.connect("CLIENTS")
        if began:
            await wire.call("SaslHandshake", 1, mechanism="PLAIN")
        wire.send_frame(struct.pack(">hhih", key, version, 1, 4) + b"test" + tags)
        assert await wire.closed()


async def test_what_strangers_hold_in_memory_has_a_bound(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections beyond the memory limit are closed; those from before stay."""
    monkeypatch.setattr(login, "HELD_BYTES_MAX", 1 << 20)
    half = struct.pack(">i", 512 << 10) + bytes(300 << 10)
    wires = []
    for _ in range(6):
        wire = await live.connect("CLIENTS")
        wire.writer.write(half)
        wires.append(wire)
    closed = [asyncio.create_task(wire.closed()) for wire in wires]
    done, waiting = await asyncio.wait(closed, timeout=3)
    assert len(waiting) == 3 and len(done) == 3
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for wire in wires:
        wire.writer.close()
    await gone(live)


async def test_strangers_who_fill_the_memory_for_logins_keep_nobody_out(live: Live) -> None:
    held, wires = login.HELD_BYTES_MAX, []
    while held > 8:
        size = min(held + login.SMALL_FRAME_BYTES, 512 << 10)
        wire = await live.connect("CLIENTS")
        wire.writer.write(struct.pack(">i", 512 << 10) + bytes(size - 4))
        held -= size - login.SMALL_FRAME_BYTES
        wires.append(wire)
    assert live.broker is not None and live.broker._sockets is not None
    logins = live.broker._sockets.logins
    await eventually("all of it is held", lambda: logins.held_bytes == login.HELD_BYTES_MAX)
    wires.append(await live.connect("OPEN"))
    await give(wires[-1], "carol")
    for account in (ALICE, *(Account(mechanism, "carol", "pw") for mechanism in HASHES)):
        wires.append(await live.connect("CLIENTS"))
        await log_in(wires[-1], account)
    for wire in wires:
        wire.writer.close()
    await gone(live)


async def test_who_does_not_log_in_is_not_waited_for(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "LOGIN_SECONDS", 0.2)
    silent, half = await live.connect("CLIENTS"), await live.connect("CLIENTS")
    half.writer.write(struct.pack(">ih", 100, 17))
    slow = await live.connect("CLIENTS")
    await slow.call("SaslHandshake", 1, mechanism="PLAIN")
    for wire in (silent, half, slow):
        assert await wire.closed()
    await gone(live)


async def test_nobody_waits_for_a_login_that_is_refused(live: Live) -> None:
    """The delay before a refusal delays no other login."""
    pause_s = 3
    await live.restart(f"connection.failed.authentication.delay.ms={1000 * pause_s}")
    guesses = []
    for _ in range(50):
        wire = await live.connect("CLIENTS")
        await wire.call("SaslHandshake", 1, mechanism="PLAIN")
        wire.send("SaslAuthenticate", 2, auth_bytes=b"\0alice\0guess")
        guesses.append(wire)
    await log_in(await live.connect("CLIENTS"), ALICE)
    assert not any(wire.reader._buffer for wire in guesses), "they still wait"  # type: ignore[attr-defined]
    for wire in guesses:
        assert (await wire.receive("SaslAuthenticate", 2))[1].error_code == errors.SASL_AUTHENTICATION_FAILED


async def test_no_secret_is_shown(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    admin = await live.connect("OPEN")
    await give(admin, "carol", "pw-of-carol")
    await log_in(await live.connect("CLIENTS"), ALICE)
    for mistaken in (Account("PLAIN", "alice", "alice-mistake"), Account("SCRAM-SHA-256", "dora", "alice-mistake")):
        with pytest.raises(errors.KafkaError):
            await log_in(await live.connect("CLIENTS"), mistaken)
    kind = m.DescribeConfigsRequest.Resources
    shown = await admin.call("DescribeConfigs", 4, resources=[kind(resource_type=4, resource_name="1001")])
    assert shown.results[0].error_code == 0
    text = caplog.text + repr(shown) + repr(ALICE)
    for secret in ("alice-secret", "alice-mistake", "pw-of-carol", "stored_key", 'b;"o=b'):
        assert secret not in text
    assert 'user=dora reason="Authentication failed' in caplog.text
    assert 'user=alice reason="Authentication failed: Invalid username or password"' in caplog.text


# -- rights to change credentials --------------------------------------------------------------------------------------


def deletion(user: str, number: int) -> Any:
    return m.AlterUserScramCredentialsRequest.Deletions(name=user, mechanism=number)


def bent(**fields: Any) -> Any:
    made = upsertion("eve", 1, "SCRAM-SHA-256")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("deletions", "upsertions", "codes"),
    [
        ([], [bent(iterations=4095)], {"eve": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(iterations=16385)], {"eve": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(name="")], {"": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(name=".")], {".": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(name="..")], {"..": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(salted_password=b"")], {"eve": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(salt=b"")], {"eve": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(mechanism=2)], {"eve": errors.UNACCEPTABLE_CREDENTIAL}),
        ([], [bent(mechanism=0)], {"eve": errors.UNSUPPORTED_SASL_MECHANISM}),
        ([], [bent(), bent()], {"eve": errors.DUPLICATE_RESOURCE}),
        ([deletion("carol", 1)], [bent(name="carol")], {"carol": errors.DUPLICATE_RESOURCE}),
        ([deletion("eve", 1)], [], {"eve": errors.RESOURCE_NOT_FOUND}),
        ([deletion("carol", 7)], [], {"carol": errors.UNSUPPORTED_SASL_MECHANISM}),
        ([deletion("carol", 1)], [bent(), bent(name="")], {"carol": 0, "eve": 0, "": errors.UNACCEPTABLE_CREDENTIAL}),
    ],
)
async def test_what_cannot_be_a_credential_is_refused_user_by_user(
    live: Live, deletions: list[Any], upsertions: list[Any], codes: dict[str, int]
) -> None:
    wire = await live.connect("OPEN")
    await give(wire, "carol")
    answer = await wire.call("AlterUserScramCredentials", 0, deletions=deletions, upsertions=upsertions)
    assert {result.user: result.error_code for result in answer.results} == codes
    assert all(bool(result.error_message) == bool(result.error_code) for result in answer.results)
    described = await wire.call("DescribeUserScramCredentials", 0, users=[])
    held = {result.user: len(result.credential_infos) for result in described.results}
    gained = {user for user in codes if user != "carol" and not codes[user]}
    assert held == {"carol": 1 if codes.get("carol") == 0 else 2, **dict.fromkeys(gained, 1)}


async def test_users_are_described(live: Live) -> None:
    wire = await live.connect("OPEN")
    for user in ("carol", "bert"):
        await give(wire, user)
    kind = m.DescribeUserScramCredentialsRequest.Users
    asked = [kind(name=name) for name in ("carol", "nobody", "bert", "bert", "")]
    answer = await wire.call("DescribeUserScramCredentials", 0, users=asked)
    assert answer.error_code == 0
    told = [(r.user, r.error_code, [(c.mechanism, c.iterations) for c in r.credential_infos]) for r in answer.results]
    assert told == [
        ("carol", 0, [(1, 4096), (2, 4096)]),
        ("nobody", errors.RESOURCE_NOT_FOUND, []),
        ("bert", errors.DUPLICATE_RESOURCE, []),
        ("", errors.RESOURCE_NOT_FOUND, []),
    ]
