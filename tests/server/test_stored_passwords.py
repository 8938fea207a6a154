"""Passwords changed while a broker runs are stored encrypted, take effect at once, and are shown nowhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from pybroker.config import Source
from pybroker.errors import INVALID_CONFIG, INVALID_REQUEST, KafkaError
from pybroker.protocol import messages as m
from pybroker.security.login import Account
from tests.server.live import Live, Wire
from tests.server.test_alter_configs import BROKER, DELETE, SET, alter
from tests.server.test_sasl import MODULE, log_in
from tests.server.test_tls import AUTHORITY, context, reasons, serial, settings, store

ME = "1001"
KEY, LOCATION = "listener.name.tls.ssl.key.password", "listener.name.tls.ssl.keystore.location"
USERS = "listener.name.both.plain.sasl.jaas.config"
FIRST, SECOND = "password.encoder.secret=first", "password.encoder.secret=second"
SESAME = "open sesame"


def locked(home: Path, name: str, password: str = SESAME) -> str:
    """Write a key store with an encrypted key; return its path."""
    return str(store(home, name, AUTHORITY.sign("localhost", password=password.encode())))


def users(**passwords: str) -> str:
    return f"{MODULE} required {' '.join(f'user_{u}={p!r}'.replace(chr(39), chr(34)) for u, p in passwords.items())};"


async def shown(wire: Wire, *names: str) -> list[tuple[str | None, bool, list[str | None]]]:
    """(value, True for a secret, values of the synonyms) of each setting."""
    asked = m.DescribeConfigsRequest.Resources(resource_type=BROKER, resource_name=ME, configuration_keys=list(names))
    [result] = (await wire.call("DescribeConfigs", 4, resources=[asked], include_synonyms=True)).results
    found = {c.name: (c.value, c.is_sensitive, [s.value for s in c.synonyms]) for c in result.configs}
    return [found[name] for name in names]


def files(home: Path) -> bytes:
    """The bytes of all files that a broker has written."""
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


async def served(live: Live) -> str:
    """The certificate that a new client gets."""
    return serial(await live.connect("TLS", context()))


async def test_passwords_change_in_a_running_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A key's password can change with its key store, and so can users' passwords. They survive a restart, also with a
    new encoder secret if the old one is given; with a wrong secret they are ignored and kept."""
    caplog.set_level(logging.DEBUG)
    live = Live(tmp_path / "data", settings(tmp_path))
    await live.start(FIRST)
    try:
        admin, before = await live.connect("OPEN"), await served(live)
        known = await live.connect("BOTH", context())
        await log_in(known, Account("PLAIN", "bob", "secret"))
        changes = [(KEY, SET, SESAME), (LOCATION, SET, locked(tmp_path, "locked")), (USERS, SET, users(carol=SESAME))]
        dry: dict[str, Any] = {"validate_only": True}
        for more, changed in ((dry, False), ({}, True)):
            assert (await alter(admin, BROKER, ME, *changes, **more)).error_code == 0
            assert (await served(live) != before) == changed
        mine = await served(live)
        await log_in(await live.connect("BOTH", context()), Account("PLAIN", "carol", SESAME))
        stranger = await live.connect("BOTH", context())
        with pytest.raises(KafkaError, match="Invalid username or password"):
            await log_in(stranger, Account("PLAIN", "bob", "secret"))
        assert (await known.call("Metadata", 9, topics=[])).brokers, "a logged-in client stays"
        assert (await alter(admin, BROKER, ME, ("log.cleaner.threads", SET, "1"))).error_code == 0
        assert await shown(admin, KEY, USERS) == [(None, True, [None])] * 2
        assert SESAME.encode() not in files(tmp_path / "data")

        await live.restart(SECOND, "password.encoder.old.secret=first")
        assert await served(live) == mine
        await live.restart(SECOND)
        assert await served(live) == mine
        await live.restart(FIRST)
        assert await served(live) == before
        assert reasons(caplog).count("password.encoder.secret does not decrypt it") >= 2
        admin = await live.connect("OPEN")
        assert (await alter(admin, BROKER, ME, ("log.cleaner.threads", SET, "2"))).error_code == 0
        await live.restart(SECOND)
        assert await served(live) == mine
        admin = await live.connect("OPEN")
        assert (await alter(admin, BROKER, ME, (KEY, DELETE, None), (LOCATION, DELETE, None))).error_code == 0
        assert await served(live) == before, "the broker's first certificate"
    finally:
        await live.stop()
    assert SESAME not in reasons(caplog)


REFUSED = [
    (ME, [(KEY, "wrong"), (LOCATION, "{locked}")], INVALID_CONFIG, f"has a private key that {KEY} does not decrypt"),
    (ME, [(LOCATION, "{locked}")], INVALID_CONFIG, "has an encrypted private key: set "),
    (ME, [(USERS, f"{MODULE} required user_bob='{SESAME};")], INVALID_CONFIG, "options have the form name=value"),
    (ME, [(USERS, f"{MODULE} required;")], INVALID_CONFIG, "PLAIN has no users"),
    ("", [(KEY, SESAME)], INVALID_REQUEST, f"{KEY} is each broker's own"),
    ("", [(USERS, users(bob=SESAME))], INVALID_REQUEST, f"{USERS} is each broker's own"),
    (ME, [("ssl.key.password", SESAME)], INVALID_REQUEST, "per listener only"),
    (ME, [("password.encoder.secret", SESAME)], INVALID_REQUEST, "cannot change while the broker runs"),
]


async def test_what_is_refused_shows_no_password(tmp_path: Path) -> None:
    """A refused change is answered with one sentence without the password, and nothing is stored."""
    live = Live(tmp_path / "data", settings(tmp_path, FIRST))
    await live.start()
    try:
        admin, file = await live.connect("OPEN"), locked(tmp_path, "locked")
        for name, changes, code, said in REFUSED:
            asked = [(setting, SET, value.replace("{locked}", file)) for setting, value in changes]
            answer = await alter(admin, BROKER, name, *asked)
            assert (answer.error_code, said in answer.error_message) == (code, True), answer.error_message
            assert SESAME not in answer.error_message and "\n" not in answer.error_message
        assert live.broker is not None and not live.broker.config.dynamic(Source.DYNAMIC_BROKER)
    finally:
        await live.stop()
