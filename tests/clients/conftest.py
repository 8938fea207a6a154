"""Which client meets which broker: every story runs for each client, against ours and, marked java, against Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import Client
from tests.harness import Server

CLIENTS: dict[str, type[Client]] = {c.name: c for c in (Confluent, KafkaPython, Aiokafka)}  # type: ignore[type-abstract]
TARGETS = [
    "pybroker",
    pytest.param("kafka391", marks=pytest.mark.java),
    pytest.param("kafka411", marks=pytest.mark.java),
]


@pytest.fixture(params=TARGETS, scope="session")
def target(request: pytest.FixtureRequest) -> Server:
    """A broker that other stories use as well."""
    return request.getfixturevalue("shared_broker" if request.param == "pybroker" else request.param)


@pytest.fixture(params=TARGETS)
def mortal(request: pytest.FixtureRequest) -> Server:
    """A broker that a story may kill and restart; it runs again when the story ends."""
    return request.getfixturevalue("broker" if request.param == "pybroker" else request.param)


@pytest.fixture(params=CLIENTS)
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
