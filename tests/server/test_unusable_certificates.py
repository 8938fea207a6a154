"""A certificate that clients would not accept is refused; only an expired one does not stop a broker's start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID as Use

from pybroker import errors
from pybroker.errors import StartError
from pybroker.logs import Logfmt
from tests.security.test_usable_keys import store
from tests.server.live import Live
from tests.server.test_tls import altered

NAME = "listener.name.tls.ssl.keystore.location"
NOT_FOR_SERVERS = x509.ExtendedKeyUsage([Use.CLIENT_AUTH])
WORDS = "no client could connect to the listener TLS"


def live(home: Path, path: Path) -> Live:
    return Live(home / "data", [
        "listeners=OPEN://127.0.0.1:0,TLS://127.0.0.1:0", "listener.security.protocol.map=OPEN:PLAINTEXT,TLS:SSL",
        "inter.broker.listener.name=OPEN", "ssl.keystore.type=PEM", f"ssl.keystore.location={path}",
    ])  # fmt: skip


async def test_no_broker_starts_with_it(tmp_path: Path) -> None:
    with pytest.raises((StartError, errors.KafkaError), match=WORDS):
        await live(tmp_path, store(tmp_path / "broker.pem", NOT_FOR_SERVERS)).start()


async def test_it_is_not_taken_while_the_broker_runs(tmp_path: Path) -> None:
    running = live(tmp_path, store(tmp_path / "broker.pem"))
    await running.start()
    admin = await running.connect("OPEN")
    for path, why in (
        (store(tmp_path / "client.pem", NOT_FOR_SERVERS), WORDS),
        (store(tmp_path / "old.pem", days=(-9, -1)), "has a certificate that expired on"),
    ):
        answer = await admin.call("IncrementalAlterConfigs", 1, resources=[altered(NAME, str(path))])
        assert answer.responses[0].error_code == errors.INVALID_CONFIG
        assert why in answer.responses[0].error_message
    await running.stop()


async def test_a_broker_starts_with_an_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An expired certificate is logged once at the start, and can be replaced while the broker runs."""
    running = live(tmp_path, store(tmp_path / "old.pem", days=(-9, -1)))
    await running.start()
    lines = [Logfmt().format(record) for record in caplog.records if record.levelno == logging.ERROR]
    (line,) = [each for each in lines if "clients cannot connect listener=" in each]
    assert "listener=TLS" in line and "has a certificate that expired on" in line
    admin = await running.connect("OPEN")
    fresh = store(tmp_path / "fresh.pem")
    answer = await admin.call("IncrementalAlterConfigs", 1, resources=[altered(NAME, str(fresh))])
    assert answer.responses[0].error_code == 0
    await running.stop()
