"""TLS client certificates, versions and ciphers, and SASL mechanisms of a listener, changed while the broker runs: they
apply to new connections only."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import core, errors
from pybroker.config import Source
from pybroker.errors import KafkaError
from pybroker.security import tls
from pybroker.security.login import Account
from tests.server.live import Live, Wire, batch
from tests.server.test_alter_configs import BROKER, DELETE, SET, alter, described
from tests.server.test_oauthbearer import SIGNER, of
from tests.server.test_oauthbearer import log_in as log_in_by_token
from tests.server.test_sasl import MODULE, give, log_in
from tests.server.test_tls import ALICE, AUTHORITY, FORGED, LATE, context, reasons, serial, settings, store
from tests.tokens import jwks

ME = "1001"
OF_TLS = "listener.name.tls."
OF_BOTH = "listener.name.both."
BOB = Account("PLAIN", "bob", "secret")


@pytest.fixture(params=["core", "ssl module"])
async def live(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """A broker with core's TLS, and one where core cannot use this Python's OpenSSL."""
    if request.param == "ssl module":
        monkeypatch.setattr(core, "tls_available", lambda: False)
        monkeypatch.setattr(tls.core, "tls_available", lambda: False)
    made = Live(tmp_path / "data", settings(tmp_path))
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def native(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data", settings(tmp_path))
    await made.start()
    yield made
    await made.stop()


async def comes_in(live: Live, listener: str, own: ssl.SSLContext) -> bool:
    """True if the client gets a first answer. With TLS 1.3 its handshake ends before the broker's."""
    try:
        wire = await live.connect(listener, own)
        return bool((await wire.call("ApiVersions", 2)).api_keys)
    except (ssl.SSLError, OSError, EOFError):
        return False


async def changed(admin: Wire, *changes: tuple[str, str | None]) -> None:
    asked = [(name, DELETE if value is None else SET, value) for name, value in changes]
    answer = await alter(admin, BROKER, ME, *asked)
    assert answer.error_code == 0, answer.error_message


@pytest.mark.parametrize("name", ["ssl.client.auth", f"{OF_TLS}ssl.client.auth"])
async def test_a_certificate_is_asked_for_from_now_on(live: Live, tmp_path: Path, name: str) -> None:
    """One listener, or all TLS listeners, asks for certificates, also after a restart, until the setting is removed."""
    admin, before = await live.connect("OPEN"), await live.connect("TLS", context())
    assert (await before.create("t")).error_code == 0
    alice, forged = context(store(tmp_path, "alice", ALICE)), context(store(tmp_path, "forged", FORGED))
    await changed(admin, (name, "required"))
    assert not await comes_in(live, "TLS", context()) and not await comes_in(live, "TLS", forged)
    assert await comes_in(live, "TLS", alice) and await comes_in(live, "BOTH", context())
    assert (await before.produce("t", batch(b"v"))).error_code == 0, "a connected client stays connected"
    assert (await described(admin, BROKER, ME))[name] == ("required", Source.DYNAMIC_BROKER)
    await live.restart()
    assert not await comes_in(live, "TLS", context()) and await comes_in(live, "TLS", alice)
    await changed(await live.connect("OPEN"), (name, None))
    assert await comes_in(live, "TLS", context())


async def test_versions_and_ciphers_are_others_from_now_on(live: Live) -> None:
    admin = await live.connect("OPEN")
    old, new = context(), context()
    old.maximum_version, new.minimum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    assert await comes_in(live, "TLS", old) and await comes_in(live, "TLS", new)
    await changed(admin, ("ssl.enabled.protocols", "TLSv1.3"))
    assert not await comes_in(live, "TLS", old) and await comes_in(live, "TLS", new)
    suites = [f"TLS_ECDHE_{kind}_WITH_AES_256_GCM_SHA384" for kind in ("RSA", "ECDSA")] + [*tls.SUITES_1_3]
    await changed(admin, ("ssl.enabled.protocols", None), ("ssl.cipher.suites", ",".join(suites)))
    wire = await live.connect("TLS", old)
    assert "AES256-GCM-SHA384" in wire.writer.get_extra_info("cipher")[0]
    weak = context()
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256")
    assert not await comes_in(live, "TLS", weak)


async def test_a_mechanism_comes_and_goes(live: Live) -> None:
    """New logins use the new mechanisms and logged-in clients stay; a mechanism that returns still has its users."""
    name = f"{OF_BOTH}sasl.enabled.mechanisms"
    admin, known = await live.connect("OPEN"), await live.connect("BOTH", context())
    await give(admin, "ann")
    await log_in(known, BOB)
    ann = Account("SCRAM-SHA-512", "ann", "pw")
    with pytest.raises(KafkaError):
        await log_in(await live.connect("BOTH", context()), ann)
    await changed(admin, (name, "SCRAM-SHA-512"))
    await log_in(await live.connect("BOTH", context()), ann)
    with pytest.raises(KafkaError) as refused:
        await log_in(await live.connect("BOTH", context()), BOB)
    assert refused.value.code == errors.UNSUPPORTED_SASL_MECHANISM
    assert (await known.call("Metadata", 9, topics=[])).brokers
    await changed(admin, (name, None))
    await log_in(await live.connect("BOTH", context()), BOB)


REFUSED = [
    ("ssl.cipher.suites", "TLS_RSA_WITH_RC4_128_SHA", "ssl.cipher.suites has 'TLS_RSA_WITH_RC4_128_SHA', which is"),
    ("ssl.enabled.protocols", "", "is empty: it takes TLSv1.2, TLSv1.3"),
    ("ssl.enabled.protocols", "SSLv3", "out of TLSv1.2, TLSv1.3"),
    (f"{OF_TLS}ssl.cipher.suites", "TLS_FOO", f"{OF_TLS}ssl.cipher.suites has 'TLS_FOO', which is"),
    (f"{OF_TLS}ssl.client.auth", "perhaps", "one of none, requested, required"),
    (f"{OF_BOTH}sasl.enabled.mechanisms", "", "no SASL mechanism"),
    (f"{OF_BOTH}sasl.enabled.mechanisms", "PLAIN,GSSAPI", "out of PLAIN, SCRAM-SHA-256"),
    (f"{OF_BOTH}sasl.enabled.mechanisms", "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url"),
    ("sasl.enabled.mechanisms", "FOO", "out of PLAIN, SCRAM-SHA-256"),
]


async def test_what_makes_a_listener_of_no_use_is_refused_and_the_old_stays(native: Live) -> None:
    """A change that makes a listener unusable is refused with the reason, and none of it is stored."""
    admin = await native.connect("OPEN")
    for name, value, said in REFUSED:
        answer = await alter(admin, BROKER, ME, (name, SET, value))
        assert answer.error_code == errors.INVALID_CONFIG and said in answer.error_message, answer.error_message
        assert "\n" not in answer.error_message
    assert await comes_in(native, "TLS", context())
    await log_in(await native.connect("BOTH", context()), BOB)
    assert native.broker is not None and native.broker.config.dynamic(Source.DYNAMIC_BROKER) == {}


async def test_a_mechanism_without_its_users_is_refused(tmp_path: Path) -> None:
    """PLAIN is refused for a listener without users; it can be set together with its users."""
    started = [each for each in settings(tmp_path) if "jaas" not in each and "sasl.enabled" not in each]
    live = Live(tmp_path / "data", [*started, "sasl.enabled.mechanisms=SCRAM-SHA-256", "password.encoder.secret=s"])
    await live.start()
    try:
        admin = await live.connect("OPEN")
        answer = await alter(admin, BROKER, ME, ("sasl.enabled.mechanisms", SET, "PLAIN"))
        assert answer.error_code == errors.INVALID_CONFIG and "PLAIN has no users" in answer.error_message
        users = f'{MODULE} required user_bob="secret";'
        await changed(admin, ("sasl.enabled.mechanisms", "PLAIN"), (f"{OF_BOTH}plain.sasl.jaas.config", users))
        await log_in(await live.connect("BOTH", context()), BOB)
    finally:
        await live.stop()


async def test_tokens_come_with_their_keys(tmp_path: Path) -> None:
    """OAUTHBEARER is refused while its keys cannot be read, and works once they can."""
    file = tmp_path / "keys.json"
    live = Live(tmp_path / "data", [*of(file.as_uri()), "sasl.enabled.mechanisms=SCRAM-SHA-256"])
    await live.start()
    try:
        admin = await live.connect("OPEN")
        answer = await alter(admin, BROKER, ME, ("sasl.enabled.mechanisms", SET, "OAUTHBEARER"))
        assert answer.error_code == errors.INVALID_CONFIG and "keys.json" in answer.error_message
        file.write_bytes(jwks(SIGNER))
        await changed(admin, ("sasl.enabled.mechanisms", "OAUTHBEARER"))
        await log_in_by_token(live, SIGNER.token())
    finally:
        await live.stop()


async def test_a_file_with_new_content_is_read_again(
    live: Live, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After `read_again`, which SIGHUP calls, new connections get the certificate that the same file has now; open
    ones stay. A file that cannot be used is logged, and the certificates in use stay."""
    caplog.set_level(logging.INFO, "pybroker")
    wire = await live.connect("TLS", context())
    assert (await wire.create("t")).error_code == 0
    file = store(tmp_path, "broker", AUTHORITY.sign("localhost"))
    live.broker.read_again()
    assert "files read again certificates=TLS,BOTH token_keys=0" in reasons(caplog)
    second = serial(await live.connect("TLS", context()))
    assert second != serial(wire) and (await wire.produce("t", batch(b"x"))).error_code == 0
    for content in (b"", LATE.key + LATE.chain):
        file.write_bytes(content)
        caplog.clear()
        live.broker.read_again()
        assert "certificate reload failed listener=TLS" in reasons(caplog)
        assert "files read again certificates=none" in reasons(caplog)
        assert serial(await live.connect("TLS", context())) == second
    file.unlink()
    live.broker.read_again()
    assert serial(await live.connect("TLS", context())) == second
