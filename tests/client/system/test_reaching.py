"""Ports and host names at which a client cannot reach its broker: the error suggests the cause, and other work does not
wait."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pybroker import errors
from pybroker.client.admin import Admin
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.producing.producer import Producer
from pybroker.errors import KafkaError
from tests.client.kit import WAIT_S, create, find_nobody, read
from tests.harness import Server

PERHAPS = "the port may need TLS"


def shake_hands(connection: socket.socket) -> None:
    """Begin a TLS handshake, as a server whose client must speak first in TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.wrap_socket(connection, server_side=True)


def alert(connection: socket.socket) -> None:
    """Answer as a TLS server that sends a fatal alert, "unexpected message"."""
    connection.recv(1 << 16)
    connection.sendall(bytes((0x15, 3, 3, 0, 2, 2, 10)))
    connection.recv(1 << 16)


def hang_up(connection: socket.socket) -> None:
    """Close the connection silently, as some TLS servers do."""
    connection.recv(1 << 16)


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that runs this with each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


@pytest.fixture(params=[shake_hands, alert, hang_up], ids=lambda server: server.__name__)
def tls_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that accepts only TLS."""
    with serving(request.param) as port:
        yield port


def test_a_port_without_tls(shared_broker: Server) -> None:
    """A port without TLS is named as a possible cause: a broker's, and one that hangs up on TLS, as ZooKeeper's."""
    perhaps = "TLS handshake failed: .* without TLS"
    with serving(hang_up) as port:
        for at in (shared_broker.bootstrap, f"127.0.0.1:{port}"):
            with pytest.raises(KafkaError, match=perhaps) as caught:
                Admin(at, security_protocol="SSL").topics()
            assert "ssl.c" not in caught.value.message
            with Producer(bootstrap_servers=at, security_protocol="SSL", max_block_ms=100) as producer:
                find_nobody(producer._network)
                with pytest.raises(KafkaError, match=perhaps):
                    producer.send("t", b"")


def test_a_port_that_speaks_tls(tls_port: int) -> None:
    """A port that speaks TLS is named as a possible cause by a connection, and by a producer that has waited for
    one."""
    with pytest.raises(KafkaError, match=PERHAPS) as caught:
        BrokerConnection("127.0.0.1", tls_port, timeout_s=WAIT_S)
    assert caught.value.code == errors.NETWORK_EXCEPTION and f"127.0.0.1:{tls_port}" in caught.value.message
    with Producer(bootstrap_servers=f"127.0.0.1:{tls_port}", max_block_ms=100) as producer:
        find_nobody(producer._network)
        with pytest.raises(KafkaError, match=PERHAPS):
            producer.send("t", b"")


def test_a_name_server_that_is_slow(shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow name server does not block the client: it gives up that address at the timeout, and uses the next."""
    create(shared_broker, topic)
    answered, asked, found = threading.Event(), threading.Event(), socket.getaddrinfo

    def look_up(host: str, *how: Any, **more: Any) -> list[Any]:
        if host == "slow.invalid" and not more.get("flags"):
            asked.set()
            answered.wait(WAIT_S)
        return found(host, *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    addresses = ["slow.invalid:9092", shared_broker.bootstrap]
    with Producer(bootstrap_servers=addresses, request_timeout_ms=200) as producer:
        assert producer.send(topic, b"").result(WAIT_S).offset == 0
        assert asked.is_set() and not answered.is_set()
        answered.set()


@pytest.mark.parametrize("first", ["frozen", "dead"])
def test_the_next_broker_is_asked_soon(
    target: Server, topic: str, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next broker is tried soon: a frozen one accepts and is silent, a dead one refuses. Neither is logged while
    another answers."""
    create(target, topic)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        bootstrap = f"127.0.0.1:{frozen.getsockname()[1]},{target.bootstrap}"
        if first == "dead":
            frozen.close()
        began_s = time.monotonic()
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(topic, b"x").result(WAIT_S)
        settings: dict[str, Any] = {"group_id": f"group-of-{topic}", "auto_offset_reset": "earliest"}
        with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
            consumer.subscribe([topic])
            read(consumer, 1)
        with Admin(bootstrap) as admin:
            assert admin.exists(topic)
            assert admin.exists(topic)
        assert time.monotonic() - began_s < 15
    assert "no broker answers" not in caplog.text
