"""Clients of two listeners: each gets, and keeps using, the addresses that its listener advertises."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.clients.adapters.neutral import Client, Record
from tests.clients.conftest import CLIENTS
from tests.harness import HOST, BrokerProcess, free_port


class Door:
    """A proxy before a broker that counts connections."""

    def __init__(self, port: int) -> None:
        self.came = 0
        self._to = port
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                self.came += 1
                broker = socket.create_connection((HOST, self._to))
                self._open += [client, broker]
                for source, sink in ((client, broker), (broker, client)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for each in (self._listening, *self._open):
            each.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def alone() -> bool:
    """One broker for any target, as listener settings are a single broker's."""
    return True


@pytest.fixture
def outside() -> Iterator[Door]:
    door = Door(free_port())
    yield door
    door.close()


@pytest.mark.parametrize("kind", CLIENTS.values(), ids=CLIENTS)
def test_each_client_goes_where_its_listener_sends_it(
    kind: type[Client], start_broker: Callable[..., BrokerProcess], outside: Door, topic: str
) -> None:
    """Each client connects to the address that its listener advertises: of two clients, one gets another address than
    the listener's."""
    port = free_port()
    broker = start_broker(
        port=port,
        sets={
            "listeners": f"INSIDE://{HOST}:{port},OUTSIDE://{HOST}:{outside._to}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "advertised.listeners": f"INSIDE://{HOST}:0,OUTSIDE://{HOST}:{outside.port}",
            "inter.broker.listener.name": "INSIDE",
        },
    )
    assert f"pybroker ready on {HOST}:{port}, OUTSIDE on {HOST}:{outside._to} (" in broker.output()
    near = kind(f"{HOST}:{port}")
    near.create_topic(topic)
    assert near.send_all(topic, [Record(b"near")]) == [0]
    assert [record.value for record in near.read(topic, 1)] == [b"near"]
    near.close()
    assert outside.came == 0, "a client of the inner listener gets no other address"
    far = kind(f"{HOST}:{outside._to}")  # past the proxy, which only metadata names
    assert far.send_all(topic, [Record(b"far")]) == [1]
    assert [record.value for record in far.read(topic, 2)] == [b"near", b"far"]
    far.close()
    assert outside.came > 0
