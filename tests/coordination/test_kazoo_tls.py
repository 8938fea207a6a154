"""kazoo's TLS connections: decrypted input, disconnects, and patience for handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from pybroker.coordination import zookeeper
from pybroker.coordination.kazoo_client import ZooKeeperClient
from pybroker.coordination.kazoo_handler import OneThread, Patience
from pybroker.coordination.zookeeper_access import ZooKeeperAccess
from pybroker.coordination.zookeeper_probe import ProbeResult
from pybroker.model import HostPort
from tests.certificates import Identity, server_context

TIMEOUT_MS = 6000


def test_what_is_decrypted_is_not_waited_for(tmp_path: Path) -> None:
    """Decrypted input is read without waiting, as a record may contain more than one read takes."""
    authority = Identity("authority")
    shown = server_context(Identity("server", authority, hosts=["localhost"]), tmp_path / "own.pem")
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            with shown.wrap_socket(accepted, server_side=True) as one:
                one.sendall(b"two frames")
                one.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        handler = OneThread(context)
        with handler.create_connection(listening.getsockname(), timeout=10, hostname="localhost") as read:
            read.setblocking(False)
            got = b""
            while len(got) < 3:
                handler.select([read], [], [], 10)
                with contextlib.suppress(ssl.SSLWantReadError):
                    got += read.recv(3 - len(got))
            assert handler.select([read], [], [], 86_400) == ([read], [], []), "decrypted input is ready"
            assert read.recv(100) == b" frames"[-7:]
            assert handler.select([read], [], [], 0) == ([], [], [])
            read.setblocking(True)
            read.sendall(b"x")
        serving.join()


def test_a_server_that_begins_no_handshake_is_left_soon() -> None:
    """A server that begins no handshake is left after a short time, for any session timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        handler = OneThread(ssl.create_default_context(), Patience(0.2, 86_400))
        with pytest.raises(TimeoutError):
            handler.create_connection(silent.getsockname(), timeout=86_400, hostname="localhost")


def test_a_server_that_is_slower_than_a_session_is_waited_for(tmp_path: Path) -> None:
    """A server whose handshake takes longer than a session is waited for, as a new attempt would add to its work."""
    authority = Identity("authority")
    shown = server_context(Identity("server", authority, hosts=["localhost"]), tmp_path / "own.pem")
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    handler = OneThread(context, Patience(0.1, 60))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                accepted, _ = listening.accept()
                time.sleep(0.5)  # longer than a handshake may take at first
                with contextlib.suppress(OSError), shown.wrap_socket(accepted, server_side=True):
                    return

        serving = threading.Thread(target=serve, daemon=True)  # waits forever if the client does not wait
        serving.start()
        for _ in range(10):
            with contextlib.suppress(TimeoutError):
                handler.create_connection(listening.getsockname(), timeout=0.2, hostname="localhost").close()
                break
        else:
            raise AssertionError("no handshake was waited for")
        serving.join()


def test_hanging_up_leaves_the_encryption_in_place(tmp_path: Path) -> None:
    """After a disconnect the connection stays encrypted, so that its remaining bytes are not taken for plaintext."""
    authority = Identity("authority")
    shown = server_context(Identity("server", authority, hosts=["localhost"]), tmp_path / "own.pem")
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    client = ZooKeeperClient("localhost", TIMEOUT_MS, ZooKeeperAccess(context), lambda: None)
    client.hang_up()  # there is no connection
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sent = threading.Event()

        def serve() -> None:
            accepted, _ = listening.accept()
            with shown.wrap_socket(accepted, server_side=True) as one:
                one.sendall(b"a frame")
                sent.set()
                with contextlib.suppress(OSError):
                    one.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        with client.handler.create_connection(listening.getsockname(), timeout=10, hostname="localhost") as read:
            client._connection._socket = read
            assert sent.wait(10)
            client.hang_up()
            with contextlib.suppress(OSError):
                while got := read.recv(100):
                    assert got == b"a frame"
        serving.join()


def test_a_look_at_a_server_that_does_not_answer_is_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failed check of a server doubles the patience, as servers also work on handshakes that clients gave up."""
    waited, latest = list[float](), [-1, -1, -1, -1, -1, -1, 7, -1]

    async def found_at(at: HostPort, seen: int, context: ssl.SSLContext | None, patience_s: float) -> ProbeResult:
        waited.append(patience_s)
        return ProbeResult("it is slow", latest[len(waited) - 1])

    monkeypatch.setattr(zookeeper, "found_at", found_at)

    async def look() -> None:
        store = zookeeper.ZooKeeperStore("localhost:1", access=ZooKeeperAccess(ssl.create_default_context()))
        for _ in latest:
            assert await store.why() == "it is slow"

    asyncio.run(look())
    assert waited == [3, 6, 12, 24, 48, 48, 48, 3]
