"""TLS clients that renegotiate on a connection, or update its keys: Java can do both, Python neither."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.testing.certificates import Authority
from tests.harness import HOST, BrokerProcess, free_port
from tests.java.driver import compiled
from tests.java.peers import MissingJava
from tests.wire import Wire

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("handshakes")]
SOURCE = Path(__file__).parent / "Handshakes.java"
REQUESTS = 20_000


@pytest.fixture
def run(start_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Callable[[str], str]:
    try:
        classes = compiled("3.9.1", SOURCE)
    except MissingJava as missing:
        pytest.skip(str(missing))
    authority = Authority()
    own = authority.sign("localhost")
    (tmp_path / "broker.pem").write_bytes(own.key + own.chain)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    plain, secured = free_port(), free_port()
    broker = start_broker(port=plain, sets={
        "listeners": f"PLAINTEXT://{HOST}:{plain},SSL://{HOST}:{secured}", "ssl.keystore.type": "PEM",
        "ssl.keystore.location": tmp_path / "broker.pem",
    })  # fmt: skip

    def started(what: str) -> str:
        command = ["java", "-cp", str(classes), "Handshakes"]
        command += [str(secured), str(tmp_path / "ca.pem"), what, str(REQUESTS)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        with Wire(broker.port) as wire:
            wire.api_versions()
        return said

    return started


def test_nobody_shakes_hands_twice(run: Callable[[str], str]) -> None:
    """A renegotiation, which costs the broker a hundred times what it costs a client, is refused."""
    assert re.match(r"answered 100, then .*no_renegotiation", run("renegotiate"))


def test_keys_may_be_exchanged(run: Callable[[str], str]) -> None:
    """Keys may be updated every 4 KiB by one end, which requests an update of the other too (RFC 8446, 4.6.3)."""
    assert run("update") == f"answered {REQUESTS}\n"
