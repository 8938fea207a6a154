"""Listeners with TLS: their settings, the principal of each client, and limits for clients not logged in."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from pybroker import core
from pybroker.config import BrokerConfig, ConfigError
from pybroker.protocol import messages as m
from pybroker.security import tls
from pybroker.security.login import Account
from pybroker.server.network import tls_handshake
from pybroker.testing.certificates import Authority, Certificate
from tests.harness import eventually
from tests.server.live import Live, Wire, batch, values
from tests.server.test_sasl import MODULE, log_in

HOST = "127.0.0.1"
PROTOCOLS = "OPEN:PLAINTEXT,TLS:SSL,BOTH:SASL_SSL"
AUTHORITY, STRANGERS = Authority(), Authority("another")


def subject(*parts: tuple[Any, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in parts])


ALICE = AUTHORITY.sign(subject((NameOID.ORGANIZATION_NAME, "Acme, Inc."), (NameOID.COMMON_NAME, "alice")))
LATE = AUTHORITY.sign("late", days=-1)
FORGED = STRANGERS.sign("alice")


def store(home: Path, name: str, certificate: Certificate) -> Path:
    path = home / f"{name}.pem"
    path.write_bytes(certificate.key + certificate.chain)
    return path


def settings(home: Path, *more: str, protocols: str = PROTOCOLS) -> list[str]:
    (home / "ca.pem").write_bytes(AUTHORITY.certificate)
    return [
        "listeners=" + ",".join(f"{name}://{HOST}:0" for name in ("OPEN", "TLS", "BOTH")),
        f"listener.security.protocol.map={protocols}",
        "inter.broker.listener.name=OPEN",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={store(home, 'broker', AUTHORITY.sign('localhost'))}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={home / 'ca.pem'}",
        "listener.name.both.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
        f'listener.name.both.plain.sasl.jaas.config={MODULE} required user_bob="secret";',
        *more,
    ]


def context(own: Path | None = None, *, authority: Authority = AUTHORITY) -> ssl.SSLContext:
    made = ssl.create_default_context(cadata=authority.certificate.decode())
    if own is not None:
        made.load_cert_chain(own)
    return made


@pytest.fixture(params=["core", "ssl module"])
async def live(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A broker with core's TLS, and one where core cannot use this Python's OpenSSL."""
    if request.param == "ssl module":
        monkeypatch.setattr(core, "tls_available", lambda: False)
    made = Live(tmp_path / "data", settings(tmp_path))
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def native(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data", settings(tmp_path, "listener.name.tls.ssl.client.auth=requested"))
    await made.start()
    yield made
    await made.stop()


def reasons(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


async def turned_away(live: Live, listener: str, tls: ssl.SSLContext) -> None:
    """Check that the broker ends the connection after sending only TLS records."""
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
        wire = await live.connect(listener, tls)
        await wire.call("ApiVersions", 2)


# -- clients that connect ----------------------------------------------------------------------------------------------


async def test_all_is_served_by_tls(live: Live) -> None:
    """Small and large requests are served in order, with TLS records of any size."""
    wire = await live.connect("TLS", context())
    assert (await wire.create("t")).error_code == 0
    sizes = [0, 1, 100, 16_384, 16_385, 300_000, 2_000_000]
    data = [os.urandom(size) for size in sizes]
    await wire.call("IncrementalAlterConfigs", 1, resources=[_size_of("t")])
    for value in data:
        assert (await wire.produce("t", batch(value))).error_code == 0
    got: list[bytes | None] = []
    while len(got) < len(data):
        got += values((await wire.fetch("t", len(got), partition_max_bytes=1 << 23)).records)
    assert got == data
    await asyncio.gather(*(_beside(live, number) for number in range(10)))


def _size_of(topic: str) -> Any:
    kind = m.IncrementalAlterConfigsRequest.Resources
    size = kind.Configs(name="max.message.bytes", config_operation=0, value="4000000")
    return kind(resource_type=2, resource_name=topic, configs=[size])


async def _beside(live: Live, number: int) -> None:
    wire = await live.connect("TLS", context())
    for n in range(20):
        assert (await wire.produce("t", batch(b"%d-%d" % (number, n) * (n + 1)))).error_code == 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_who_logs_in_by_tls_is_served(live: Live, mechanism: str) -> None:
    """Bytes that a login leaves in a TLS record are read by the next owner of the connection."""
    from tests.server.test_sasl import give

    await give(await live.connect("OPEN"), "bob", "secret")
    wire = await live.connect("BOTH", context())
    await log_in(wire, Account(mechanism, "bob", "secret"))
    assert (await wire.create("t")).error_code == 0
    assert (await wire.produce("t", batch(b"x"))).error_code == 0
    assert values((await wire.fetch("t", 0)).records) == [b"x"]


async def test_what_follows_a_login_in_its_record_is_answered(live: Live) -> None:
    """All frames of a login and a request are answered when they arrive in one TLS record."""
    from pybroker.protocol import codec
    from tests.server.live import KEYS

    wire = await live.connect("BOTH", context())
    frames = [
        codec.encode_request(KEYS["SaslHandshake"], 1, 1, "c", m.SaslHandshakeRequest(mechanism="PLAIN")),
        codec.encode_request(
            KEYS["SaslAuthenticate"], 2, 2, "c", m.SaslAuthenticateRequest(auth_bytes=b"\0bob\0secret")
        ),
        codec.encode_request(KEYS["Metadata"], 12, 3, "c", m.MetadataRequest(topics=[])),
    ]
    wire.writer.write(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    for name, version, number in (("SaslHandshake", 1, 1), ("SaslAuthenticate", 2, 2), ("Metadata", 12, 3)):
        answered, answer = await wire.receive(name, version)
        assert answered == number and getattr(answer, "error_code", 0) == 0


# -- principals --------------------------------------------------------------------------------------------------------

AUTHORIZED = [
    "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
    "listener.name.tls.ssl.client.auth=required",
]


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        (None, r"CN=alice,O=Acme\, Inc."),
        (r"RULE:^CN=(.*?),O=.*$/$1@acme/U,DEFAULT", "ALICE@ACME"),
        ("RULE:^OU=.*$/nobody/, RULE:^CN=(.*?),.*$/$1-x/L", "alice-x"),
    ],
)
async def test_a_certificate_makes_a_principal(tmp_path: Path, rules: str | None, user: str) -> None:
    """A client's principal comes from its certificate, and only that principal's rights apply."""
    more = [] if rules is None else [f"listener.name.tls.ssl.principal.mapping.rules={rules}"]
    live = Live(tmp_path / "data", settings(tmp_path, *AUTHORIZED, *more, f"super.users=User:{user};User:bob"))
    await live.start()
    try:
        wire = await live.connect("TLS", context(store(tmp_path, "alice", ALICE)))
        assert (await wire.create("t")).error_code == 0
        assert (await wire.produce("t", batch(b"x"))).error_code == 0
        other = await live.connect("TLS", context(store(tmp_path, "other", AUTHORITY.sign("mallory"))))
        if rules is None:
            assert (await other.create("u")).error_code == 29
        else:
            assert (await other.create("u")).error_code in (29, 31) if rules.endswith("DEFAULT") else True
    finally:
        await live.stop()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("RULE:^CN=x$/x/", r"no rule of ssl.principal.mapping.rules matches"),
        ("RULE:^.*$/ANONYMOUS/", "no user can be called 'ANONYMOUS'"),
        ("RULE:^.*$/*/", "no user can be called '*'"),
    ],
)
async def test_a_certificate_that_makes_no_principal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rules: str, said: str
) -> None:
    live = Live(tmp_path / "data", settings(
        tmp_path, "listener.name.tls.ssl.client.auth=required",
        f"listener.name.tls.ssl.principal.mapping.rules={rules}",
    ))  # fmt: skip
    await live.start()
    try:
        await turned_away(live, "TLS", context(store(tmp_path, "alice", ALICE)))
        await eventually("it is told", lambda: said in reasons(caplog))
    finally:
        await live.stop()


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (None, "peer did not return a certificate"),
        (FORGED, "certificate verify failed: "),
        (LATE, "certificate verify failed: certificate has expired"),
    ],
    ids=["nobody", "forged", "expired"],
)
@pytest.mark.parametrize("native", [True, False], ids=["core", "ssl module"])
async def test_a_certificate_is_required(
    tmp_path: Path, who: Certificate | None, said: str, native: bool, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A client without a valid certificate is refused, counted and logged with its address."""
    if not native:
        monkeypatch.setattr(core, "tls_available", lambda: False)
    live = Live(tmp_path / "data", settings(tmp_path, "listener.name.tls.ssl.client.auth=required"))
    broker = await live.start()
    try:
        await turned_away(live, "TLS", context(None if who is None else store(tmp_path, "own", who)))
        await eventually("it is told", lambda: said in reasons(caplog))
        assert "Errno" not in caplog.text
        told = next(r.getMessage() for r in caplog.records if said in r.getMessage())
        assert "TLS handshake failed" in told and "client=127.0.0.1:" in told and "\n" not in told
        assert broker._sockets is not None and broker._sockets.logins.failed == 1
    finally:
        await live.stop()


async def test_a_certificate_may_be_shown_or_not(native: Live, tmp_path: Path) -> None:
    for own in (None, store(tmp_path, "alice", ALICE)):
        wire = await native.connect("TLS", context(own))
        assert (await wire.call("Metadata", 9, topics=[])).brokers
    await turned_away(native, "TLS", context(store(tmp_path, "forged", FORGED)))


async def test_with_a_login_only_the_listeners_own_setting_asks_for_certificates(tmp_path: Path) -> None:
    """ssl.client.auth without a listener prefix applies to SSL listeners and not to SASL_SSL, as in Kafka."""
    live = Live(tmp_path / "data", settings(tmp_path, "ssl.client.auth=required"))
    await live.start()
    try:
        await log_in(await live.connect("BOTH", context()), Account("PLAIN", "bob", "secret"))
        await turned_away(live, "TLS", context())
    finally:
        await live.stop()


# -- TLS versions and ciphers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_versions_and_suites_are_those_of_the_settings(tmp_path: Path, version: str) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" if version == "TLSv1.2" else "TLS_AES_128_GCM_SHA256"
    own = (f"listener.name.tls.ssl.enabled.protocols={version}", f"listener.name.tls.ssl.cipher.suites={suite}")
    live = Live(tmp_path / "data", settings(tmp_path, *own))
    await live.start()
    try:
        wire = await live.connect("TLS", context())
        spoken = wire.writer.get_extra_info("ssl_object")
        assert spoken.version() == version and "AES128" in spoken.cipher()[0].replace("_", "")
        other = context()
        if version == "TLSv1.2":
            other.minimum_version = ssl.TLSVersion.TLSv1_3
        else:
            other.maximum_version = ssl.TLSVersion.TLSv1_2
        await turned_away(live, "TLS", other)
    finally:
        await live.stop()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["ssl.keystore.location=/nowhere.pem"], "/nowhere.pem (ssl.keystore.location) cannot be read: no such file"),
        (["listener.name.tls.ssl.keystore.location=/nowhere.pem"],
         "/nowhere.pem (listener.name.tls.ssl.keystore.location) cannot be read"),
        (["ssl.keystore.type=JKS"], "is PEM: ssl.keystore.type has to be PEM"),
        (["ssl.cipher.suites=TLS_RSA_WITH_RC4_128_SHA"], "ssl.cipher.suites has 'TLS_RSA_WITH_RC4_128_SHA', which is"),
        (["ssl.enabled.protocols=TLSv1.3", "ssl.cipher.suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
         "ssl.cipher.suites has no cipher suite of TLSv1.3"),
        (["ssl.truststore.location=/nowhere", "listener.name.tls.ssl.client.auth=required"],
         "/nowhere (ssl.truststore.location) cannot be read"),
        (["ssl.principal.mapping.rules=RULE:(/x/"], "is not allowed: the pattern '(' cannot be used: missing )"),
    ],
)  # fmt: skip
async def test_what_cannot_be_used_is_said_at_the_start(tmp_path: Path, more: list[str], said: str) -> None:
    live = Live(tmp_path / "data", settings(tmp_path, *more))
    with pytest.raises(ConfigError) as refused:
        await live.start()
    assert said in refused.value.message and "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("ssl.enabled.protocols=SSLv3", "it takes a comma-separated list out of TLSv1.2, TLSv1.3"),
        ("ssl.client.auth=perhaps", "it takes one of none, requested, required"),
        ("listener.name.tls.ssl.client.auth=perhaps", "listener.name.tls.ssl.client.auth = 'perhaps'"),
        ("ssl.principal.mapping.rules=RULE:x", "it takes rules like RULE:"),
    ],
)
def test_what_is_no_value_is_said_before_the_start(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(None, settings(tmp_path, more))
    assert said in refused.value.message


def test_no_secret_is_shown(tmp_path: Path) -> None:
    config = BrokerConfig.load(None, settings(tmp_path, "ssl.key.password=sesame", "ssl.keystore.password=sesame"))
    assert "sesame" not in repr(config.ssl) + str(config.ssl["TLS"]) + repr(config.entries())


# -- certificates that are exchanged -----------------------------------------------------------------------------------


def altered(name: str, value: str | None) -> Any:
    kind = m.IncrementalAlterConfigsRequest.Resources
    change = kind.Configs(name=name, config_operation=0 if value is not None else 1, value=value)
    return kind(resource_type=4, resource_name="1001", configs=[change])


def serial(wire: Wire) -> str:
    shown: dict[str, Any] = wire.writer.get_extra_info("ssl_object").getpeercert()
    return str(shown["serialNumber"])


async def test_certificates_are_exchanged_in_a_running_broker(live: Live, tmp_path: Path) -> None:
    """Another file, or another certificate in the same file, is used for new connections; a restart keeps it."""
    name = "listener.name.tls.ssl.keystore.location"
    wire, admin = await live.connect("TLS", context()), await live.connect("OPEN")
    assert (await wire.create("t")).error_code == 0
    seen = {serial(wire)}
    for path in ("second", "second", "third"):
        path = str(store(tmp_path, path, AUTHORITY.sign("localhost")))
        answer = await admin.call("IncrementalAlterConfigs", 1, resources=[altered(name, path)])
        assert [r.error_code for r in answer.responses] == [0]
        fresh = await live.connect("TLS", context())
        assert serial(fresh) not in seen
        seen.add(serial(fresh))
        assert (await wire.produce("t", batch(b"x"))).error_code == 0
    kind = m.DescribeConfigsRequest.Resources
    described = (await admin.call("DescribeConfigs", 4, resources=[
        kind(resource_type=4, resource_name="1001", configuration_keys=[name])])).results[0].configs  # fmt: skip
    assert [(c.name, c.value, c.config_source, c.read_only) for c in described] == [(name, path, 2, False)]
    await live.restart()
    assert serial(await live.connect("TLS", context())) in seen - {serial(wire)}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("listener.name.tls.ssl.keystore.location", "/nowhere", "/nowhere (listener.name.tls.ssl.keystore.location)"),
        ("listener.name.tls.ssl.keystore.type", "PKCS12", "is PEM: listener.name.tls.ssl.keystore.type has to be PEM"),
        ("listener.name.tls.ssl.principal.mapping.rules", "DEFAULT", "cannot be updated dynamically for existing"),
        ("listener.name.tls.ssl.nothing", "x", "is no setting of a broker"),
        ("listener.name.TLS.ssl.keystore.type", "PEM", "settings of the listeners begin with listener.name.both. and"),
        ("listener.name.tls.ssl.keystore.password", "x", "password.encoder.secret is not set"),
    ],
)
async def test_what_cannot_be_exchanged_is_refused(native: Live, name: str, value: str, said: str) -> None:
    """A refused change is not stored, and the listener goes on."""
    admin = await native.connect("OPEN")
    answer = await admin.call("IncrementalAlterConfigs", 1, resources=[altered(name, value)])
    assert [r.error_code for r in answer.responses] == [40] and said in answer.responses[0].error_message
    assert (await (await native.connect("TLS", context())).call("Metadata", 9, topics=[])).brokers


# -- what strangers can do ---------------------------------------------------------------------------------------------


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for sock in made:
        sock.close()


async def test_one_who_speaks_no_tls(native: Live, caplog: pytest.LogCaptureFixture) -> None:
    """A plaintext client of a TLS listener, and the reverse, is closed, with that reason in the log."""
    wire = await native.connect("TLS")
    wire.send("ApiVersions", 2)
    assert await wire.closed()
    await eventually("it is told", lambda: "it does not speak TLS, which this listener requires" in reasons(caplog))
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
        await native.connect("OPEN", context())
    await eventually("it is told", lambda: "it speaks TLS, which this listener does not" in reasons(caplog))


async def test_one_who_does_not_take_the_certificate(native: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert native.broker is not None
    at = HOST, native.broker.addresses["TLS"].port

    def speak() -> None:
        """Connect with a blocking socket, as asyncio ends a connection without the alert."""
        with socket.create_connection(at) as sock, pytest.raises(ssl.SSLCertVerificationError):
            context(authority=STRANGERS).wrap_socket(sock, server_hostname="localhost")

    await asyncio.to_thread(speak)
    said = "the client rejected this broker's certificate: unknown ca"
    await eventually("it is told", lambda: said in reasons(caplog))


async def test_handshakes_that_stand_still_end(
    native: Live, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other clients are served while handshakes stand still, and those are closed in the end."""
    monkeypatch.setattr(tls_handshake, "LOGIN_SECONDS", 0.5)
    assert native.broker is not None
    at = HOST, native.broker.addresses["TLS"].port
    for begin in (b"", b"\x16\x03\x01\x02\x00", b"\x16"):
        for _ in range(10):
            sockets.append(socket.create_connection(at))
            sockets[-1].sendall(begin)
    wire = await native.connect("TLS", context())
    assert (await wire.call("Metadata", 9, topics=[])).brokers
    count = len(native.broker._sockets or ())
    assert count > 1
    await eventually("they are closed", lambda: len(native.broker._sockets or ()) == 1)  # type: ignore[union-attr]
    assert "no TLS handshake within 0.5 s" in reasons(caplog)
    assert (await wire.call("Metadata", 9, topics=[])).brokers


async def test_a_stop_in_the_midst_of_handshakes(native: Live, sockets: list[socket.socket]) -> None:
    assert native.broker is not None
    at = HOST, native.broker.addresses["TLS"].port
    for begin in (b"", b"\x16\x03\x01\x02\x00"):
        sockets.append(socket.create_connection(at))
        sockets[-1].sendall(begin)
    await eventually("they are there", lambda: len(native.broker._sockets or ()) == 2)  # type: ignore[union-attr]
    await native.stop()


async def test_a_broker_that_cannot_use_openssl_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core, "tls_available", lambda: False)
    live = Live(tmp_path / "data", settings(tmp_path))
    with caplog.at_level(logging.WARNING):
        await live.start()
    await live.stop()
    assert reasons(caplog).count("TLS is slow") == 1


async def test_no_answer_is_lost_when_a_client_stops_reading(native: Live) -> None:
    """Unread answers wait, encrypted, while others are served; then the client gets all of them."""
    writer = await native.connect("TLS", context())
    assert (await writer.create("t")).error_code == 0
    for _ in range(16):
        assert (await writer.produce("t", batch(os.urandom(900_000)))).error_code == 0
    slow = await native.connect("TLS", context())
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for offset in range(16):
        slow.send("Fetch", 12, **_fetch(offset))
    for _ in range(20):
        assert (await writer.produce("t", batch(b"x"))).error_code == 0
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for offset in range(16):
        _, answer = await slow.receive("Fetch", 12)
        (header,) = [h for _, h in core.iter_batches(bytes(answer.responses[0].partitions[0].records))][:1]
        assert header.base_offset == offset


def _fetch(offset: int) -> dict[str, Any]:
    from tests.server.live import fetch_fields

    return fetch_fields("t", offset)


def test_streams_are_of_one_kind() -> None:
    """Both kinds of TLS stream have the same methods."""
    kinds = [set(dir(kind)) | {"tls", "handshake", "recv", "recv_into", "peer_certificate"} for kind in (
        tls.NativeStream, tls.SslStream)]  # fmt: skip
    assert {n for n in kinds[0] if n[0] != "_"} == {n for n in kinds[1] if n[0] != "_"}
