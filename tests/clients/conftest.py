"""Which client meets which broker: every story runs for each client, against ours, or by --target against Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import Client
from tests.harness import Server

CLIENTS: dict[str, type[Client]] = {c.name: c for c in (Confluent, KafkaPython, Aiokafka)}  # type: ignore[type-abstract]
LEAKS = "ignore:unclosed <socket:ResourceWarning"
"""kafka-python drops the socket of each connection that is refused."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    targets = metafunc.config.getoption("target") or ["pybroker"]
    params = [pytest.param(name, marks=() if name == "pybroker" else pytest.mark.java) for name in targets]
    for fixture in {"target", "mortal"} & set(metafunc.fixturenames):
        metafunc.parametrize(fixture, params, indirect=True, scope="session" if fixture == "target" else "function")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Server:
    """A broker that other stories use as well."""
    return request.getfixturevalue("shared_broker" if request.param == "pybroker" else request.param)


@pytest.fixture
def mortal(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A broker that a story may kill and restart."""
    server = request.getfixturevalue("broker" if request.param == "pybroker" else request.param)
    yield server
    if not server.running:  # a story that failed half-way does not fail the next one
        server.restart()


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.filterwarnings(LEAKS)) for name in CLIENTS])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[Server], Client]]:
    """Connect the client library of this run to a broker."""
    opened: list[Client] = []

    def open_client(server: Server) -> Client:
        opened.append(CLIENTS[request.param](server.bootstrap))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture
def client(connect: Callable[[Server], Client], target: Server) -> Client:
    return connect(target)
