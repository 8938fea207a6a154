"""Which client meets which broker: every story runs for each client, against ours, or by --target against Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.brokers.server import ThreeBrokers
from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.java import JavaClient
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import Client
from tests.harness import Server
from tests.java.driver import Driver
from tests.java.peers import SHARED, VERSIONS, MissingJava

CLIENTS: dict[str, type[Client]] = {c.name: c for c in (Confluent, KafkaPython, Aiokafka)}  # type: ignore[type-abstract]

TARGETS = {"pybroker": "shared_broker", "cluster": "shared_cluster", **{name: name for name in SHARED}}
"""The fixture of each --target."""
MARKS = {"cluster": [pytest.mark.java, pytest.mark.xdist_group("cluster")], **SHARED}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    targets = metafunc.config.getoption("target") or ["pybroker"]
    if metafunc.definition.get_closest_marker("on_cluster") and "cluster" not in targets:
        targets = [*targets, "cluster"]
    params = [pytest.param(name, marks=MARKS.get(name, ())) for name in targets]
    for fixture in {"target", "mortal"} & set(metafunc.fixturenames):
        metafunc.parametrize(fixture, params, indirect=True, scope="session" if fixture == "target" else "function")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Server:
    """A broker that other stories use as well."""
    return request.getfixturevalue(TARGETS[request.param])


@pytest.fixture
def mortal(request: pytest.FixtureRequest, topic: str) -> Iterator[Server]:
    """A broker that a story may kill and restart; of a cluster, those who lead its topic."""
    server = request.getfixturevalue("broker" if request.param == "pybroker" else TARGETS[request.param])
    if isinstance(server, ThreeBrokers):
        server.topic = topic
    yield server
    if not server.running:  # a story that failed half-way does not fail the next one
        server.restart()


@pytest.fixture(scope="session")
def java_driver() -> Iterator[Callable[[str], Driver]]:
    """The JVM with Kafka's Java client of a version, started when it is first asked for."""
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


@pytest.fixture(
    params=[
        *CLIENTS,
        *(
            pytest.param(f"java-{version}", marks=[pytest.mark.java, pytest.mark.xdist_group(f"java-{version}")])
            for version in VERSIONS
        ),
    ]
)
def connect(
    request: pytest.FixtureRequest, java_driver: Callable[[str], Driver]
) -> Iterator[Callable[[Server], Client]]:
    """Connect the client library of this run to a broker."""
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
