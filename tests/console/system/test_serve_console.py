"""`pybroker serve --console`: a console beside the broker, which starts and ends with it."""

from __future__ import annotations

import importlib.util
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.console.conftest import READY_S_MAX, Browser
from tests.harness import HOST, BrokerProcess, until

CONSOLE = r"pybroker console on http://127\.0\.0\.1:(\d+)/"


class Serving(BrokerProcess):
    """A broker with a console beside it."""

    at = f"{HOST}:0"

    def command(self) -> list[str]:
        return [*super().command(), "--console", self.at]

    def browser(self) -> Browser:
        assert self.process is not None
        return Browser(int(self.process.wait_line(CONSOLE, READY_S_MAX)[1]))


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Start a broker with a console, and these settings."""
    started: list[Serving] = []

    def start(**sets: object) -> Serving:
        started.append(Serving(tmp_path / "data", sets={name.replace("_", "."): value for name, value in sets.items()}))
        started[-1].start()
        return started[-1]

    yield start
    for broker in started:
        broker.close()


def is_served(browser: Browser) -> bool:
    """True while the console's port takes connections."""
    try:
        socket.create_connection((HOST, browser.port), 5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_console_ends_with_its_broker(serving: Callable[..., Serving], number: signal.Signals) -> None:
    """The console shows its broker, and does not outlive it, even if the broker is killed."""
    broker = serving()
    browser = broker.browser()
    page = browser.get("/")
    assert page.code == 200 and "Healthy: 1 broker" in page.text and "read-only" in page.text
    assert broker.process is not None
    broker.process.signal(number)
    until("the console has ended", lambda: not is_served(browser))
    broker.close()


def test_a_listener_with_a_login_asks_viewers_for_it(serving: Callable[..., Serving]) -> None:
    """Viewers log in where clients of the broker do, and have the rights of their user."""
    module = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="of alice";'
    broker = serving(
        listeners=f"CLIENTS://{HOST}:0", listener_security_protocol_map="CLIENTS:SASL_PLAINTEXT",
        inter_broker_listener_name="CLIENTS", sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN", listener_name_clients_plain_sasl_jaas_config=module,
    )  # fmt: skip
    browser = broker.browser()
    assert browser.get("/").headers["location"] == "/login"
    assert browser.send("/login", "/login", {"user": "alice", "password": "of bob"}).code == 403
    assert browser.send("/login", "/login", {"user": "alice", "password": "of alice"}).code == 303
    assert "Healthy: 1 broker" in browser.get("/").text


def test_a_port_in_use_does_not_stop_the_broker(tmp_path: Path) -> None:
    """A console that cannot listen says so in a sentence, and the broker serves all the same."""
    with socket.create_server((HOST, 0)) as taken:
        broker = Serving(tmp_path / "data")
        broker.at = f"{HOST}:{taken.getsockname()[1]}"
        with broker.start():
            assert broker.process is not None
            broker.process.wait_line(rf"^pybroker: the console could not listen on {broker.at}: ", READY_S_MAX)
            assert run("topics", "list", "-b", broker.bootstrap).code == 0


@pytest.mark.parametrize(
    ("at", "sets", "words"),
    [
        ("0.0.0.0:8080", (), "is reached by other machines, and listener PLAINTEXT has no login"),
        ("localhost:x", (), "--console is HOST:PORT or PORT, not 'localhost:x'"),
        ("99999", (), "--console is HOST:PORT or PORT, not '99999'"),
        (
            "8080",
            ("listeners=SSL://:0", "inter.broker.listener.name=SSL"),
            "--console needs a listener with PLAINTEXT or SASL_PLAINTEXT",
        ),
    ],
)
def test_a_console_that_cannot_be_is_refused(tmp_path: Path, at: str, sets: tuple[str, ...], words: str) -> None:
    """The broker does not start with a console that other machines could reach without a login, or without a listener
    that suits it."""
    given = [f"--set={each}" for each in sets]
    done = run("serve", "--data-dir", tmp_path / "data", "--console", at, *given)
    assert done.code == 2 and words in done.err.splitlines()[-1]
    assert not (tmp_path / "data").exists()


def test_without_the_packages_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is named with the command that installs it."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "starlette" else real(name))
    done = run("serve", "--data-dir", tmp_path / "data", "--console")
    assert done.code == 1 and "the console needs starlette: pip install" in done.sentence
