"""Fixtures of all tests: a broker of a test's own, one that a session shares, topics that no other test has."""

from __future__ import annotations

import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import harness
from tests.harness import BrokerProcess, Server, free_port
from tests.java import peers

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        action="append",
        choices=["pybroker", "kafka391", "kafka411"],
        help="the broker that the client stories run against; Apache Kafka shows what they should expect (repeatable)",
    )


def pytest_configure() -> None:
    """In the background of a shell SIGINT is ignored, and what the tests start would inherit that: Ctrl-C for all."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show what the test's brokers said beside a failure."""
    report = (yield).get_result()
    used = list(getattr(item, "funcargs", {}).values())
    if report.failed:
        for server in harness.LIVE:
            if server in used or call.when != "call":
                report.sections.append((f"output of {server.name} on port {server.port}", server.output()))


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses, and that tells which test it is of."""
    return new_name(request.node.name)


def new_name(hint: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', hint).strip('-')[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start brokers of this test's own: `start_broker(sets={...}, data_dir=..., failpoints=...)`."""
    started: list[BrokerProcess] = []

    def start(**how: object) -> BrokerProcess:
        how.setdefault("data_dir", tmp_path / f"broker-{len(started)}")
        how.setdefault("port", free_port())
        broker = BrokerProcess(**how)  # type: ignore[arg-type]
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.close()


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker of this test's own, to kill, stop and restart."""
    return start_broker()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of a session that only need one: never killed, topics by `topic`."""
    # Its first look at retention would take the records of tests that write them with times of years ago.
    sets = {"log.retention.check.interval.ms": 86_400_000}
    broker = BrokerProcess(tmp_path_factory.mktemp("shared") / "data", sets=sets)
    with broker:
        yield broker
        broker.stop()  # whatever the session did to it, SIGTERM ends it cleanly


def _peer(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        peers.jars(peers.PEERS[name].version)
    except peers.MissingJava as e:
        pytest.skip(str(e))
    with peers.PEERS[name](tmp_path_factory.mktemp(name)) as peer:
        yield peer


@pytest.fixture(scope="session")
def kafka391(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Apache Kafka 3.9.1 in ZooKeeper mode."""
    yield from _peer("kafka391", tmp_path_factory)


@pytest.fixture(scope="session")
def kafka411(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Apache Kafka 4.1.1 in KRaft mode."""
    yield from _peer("kafka411", tmp_path_factory)


@pytest.fixture(
    params=["pybroker", *(pytest.param(name, marks=marks) for name, marks in peers.SHARED.items())],
    scope="module",
)
def target(request: pytest.FixtureRequest) -> Server:
    """A broker that other tests use as well."""
    server: Server = request.getfixturevalue("shared_broker" if request.param == "pybroker" else request.param)
    return server
