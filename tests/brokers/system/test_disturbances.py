"""The faults of a campaign do what their names say."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pybroker import errors
from tests.brokers.kit import Cluster
from tests.brokers.network import CLIENTS, NOBODY, Network
from tests.harness import HOST, until
from tests.stores import AnyStore
from tests.wire import Wire, batch

BROKER = 1
ANSWER_S = 10
TURNS = 10
"""Turns of the network's loop, after which it has read what a socket received."""


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network(refusing=True, has_clients=True)
    yield made
    made.close()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with closing(socket.create_server((HOST, 0))) as server:
        server.settimeout(ANSWER_S)
        yield server


def connected(port: int) -> socket.socket:
    made = socket.create_connection((HOST, port), ANSWER_S)
    made.settimeout(ANSWER_S)
    return made


def accepted(listening: socket.socket) -> socket.socket:
    there, _ = listening.accept()
    there.settimeout(ANSWER_S)
    return there


def is_refused(port: int) -> bool:
    with suppress(ConnectionRefusedError), connected(port):
        return False
    return True


def test_a_broker_is_refused_though_it_lives(network: Network, listening: socket.socket) -> None:
    """Existing connections stay, except those of a witness, and clients are not refused."""
    port = listening.getsockname()[1]
    peers, clients = network.way_to(BROKER, port, NOBODY), network.way_to(BROKER, port, CLIENTS)
    with connected(peers) as kept, accepted(listening) as there:
        network.refuse(BROKER)
        until("it is refused", lambda: is_refused(peers))
        assert not is_refused(clients)
        kept.sendall(b"goes on")
        assert there.recv(7) == b"goes on"
        network.accept(BROKER)
        assert not is_refused(peers)


def test_what_a_client_sent_arrives_late(network: Network, listening: socket.socket) -> None:
    way = network.way_to(BROKER, listening.getsockname()[1], CLIENTS)
    with connected(way) as client, accepted(listening) as there:
        network.cut_one_way(CLIENTS, BROKER)
        client.sendall(b"late")
        there.sendall(b"heard")
        assert client.recv(5) == b"heard"
        network.heal()
        assert there.recv(4) == b"late"


def test_what_a_client_sent_that_closed_is_lost(network: Network, listening: socket.socket) -> None:
    """Late bytes would otherwise arrive after those that the client sent again on another connection."""
    way = network.way_to(BROKER, listening.getsockname()[1], CLIENTS)
    with connected(way) as client, accepted(listening) as there:
        client.sendall(b"first")
        assert there.recv(5) == b"first"
        network.cut_one_way(CLIENTS, BROKER)
        client.sendall(b"lost")
        client.close()
        for _ in range(TURNS):
            network.thread.call(lambda: None)
        network.heal()
        assert there.recv(4) == b""


@pytest.mark.java
def test_a_disk_is_full_and_has_space_again(tmp_path: Path, store: AnyStore) -> None:
    """Every write of a running broker is refused, and it goes on without a restart."""
    cluster = Cluster(tmp_path, store, count=1)
    broker = cluster.brokers[BROKER]
    broker.is_fillable = True
    with cluster, Wire(broker.port) as wire:
        assert wire.create_topic("t") == errors.NONE
        until("it takes records", lambda: wire.produce("t", batch([b"a"]), acks=1).error == errors.NONE)
        broker.full.touch()
        until("it is full", lambda: wire.produce("t", batch([b"b"]), acks=1).error != errors.NONE)
        broker.full.unlink()
        until("it takes records again", lambda: wire.produce("t", batch([b"c"]), acks=1).error == errors.NONE)
