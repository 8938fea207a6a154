"""The pairs of client and broker: every test runs with each client, against our broker, or with --target against
Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from tests.brokers.server import ThreeBrokers
from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.java import JVMS, JavaClient
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import Client
from tests.harness import Server
from tests.java.driver import Driver
from tests.java.peers import SHARED, MissingJava

CLIENTS: dict[str, type[Client]] = {c.name: c for c in (Confluent, KafkaPython, Aiokafka)}  # type: ignore[type-abstract]
CONNECTED = dict.fromkeys(CLIENTS, ()) | {f"java-{version}": marks for version, marks in JVMS.items()}
"""The marks of each client that `connect` makes."""

TARGETS = {"pybroker": "shared_broker", "cluster": "shared_cluster", **{name: name for name in SHARED}}
"""The fixture of each --target."""
MARKS = {"cluster": [pytest.mark.java, pytest.mark.xdist_group("cluster")], **SHARED}


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize before pytest does, as the order in test ids would otherwise depend on the given folders."""
    targets = metafunc.config.getoption("target") or ["pybroker"]
    if metafunc.definition.get_closest_marker("on_cluster") and "cluster" not in targets:
        targets = [*targets, "cluster"]
    fixtures = [name for name in ("target", "mortal", "connect") if name in metafunc.fixturenames]
    if fixtures == ["connect"]:
        params = [pytest.param(name, marks=marks) for name, marks in CONNECTED.items()]
    elif "connect" in fixtures:
        params = [pytest.param(*pair, marks=marks_of(*pair)) for pair in product(targets, CONNECTED)]
    else:
        params = [pytest.param(name, marks=MARKS.get(name, ())) for name in targets]
    if fixtures:
        metafunc.parametrize(fixtures, params, indirect=True)


def marks_of(target: str, client: str) -> list[pytest.MarkDecorator]:
    """The marks of a pair. Other libraries run against our cluster, and Java against one broker: Java with a cluster is
    long."""
    marks = [*MARKS.get(target, ()), *CONNECTED[client]]
    return [*marks, pytest.mark.long] if target == "cluster" and client not in CLIENTS else marks


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Server:
    """A broker that other tests use as well."""
    return request.getfixturevalue(TARGETS[request.param])


@pytest.fixture
def mortal(request: pytest.FixtureRequest, topic: str) -> Iterator[Server]:
    """A broker that a test may kill and restart; of a cluster, the leaders of its topic."""
    server = request.getfixturevalue("broker" if request.param == "pybroker" else TARGETS[request.param])
    if isinstance(server, ThreeBrokers):
        server.topic = topic
    yield server
    if not server.running:  # a test that failed half-way does not fail the next one
        server.restart()


@pytest.fixture(scope="session")
def java_driver() -> Iterator[Callable[[str], Driver]]:
    """The JVM with a version of Kafka's Java client, started at its first use."""
    drivers: dict[str, Driver] = {}

    def driver(version: str) -> Driver:
        if version not in drivers:
            try:
                drivers[version] = Driver(version)
            except MissingJava as e:
                pytest.skip(str(e))
        return drivers[version]

    yield driver
    for started in drivers.values():
        started.close()


@pytest.fixture
def connect(
    request: pytest.FixtureRequest, java_driver: Callable[[str], Driver]
) -> Iterator[Callable[[Server], Client]]:
    """Connect this run's client library to a broker."""
    opened: list[Client] = []

    def open_client(server: Server) -> Client:
        if request.param in CLIENTS:
            client: Client = CLIENTS[request.param](server.bootstrap)
        else:
            client = JavaClient(server.bootstrap, java_driver(request.param.removeprefix("java-")))
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture
def client(connect: Callable[[Server], Client], target: Server) -> Client:
    return connect(target)
