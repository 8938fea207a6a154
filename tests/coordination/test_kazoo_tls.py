"""kazoo's end of a connection with TLS: what is decrypted, what hangs up, and how long a handshake may take."""

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
from pybroker.coordination.found_at import Found
from pybroker.coordination.kazoo_client import Client
from pybroker.coordination.kazoo_handler import OneThread, Patience
from pybroker.coordination.zookeeper_access import Access
from pybroker.model import HostPort
from tests.certificates import Identity, server_context

TIMEOUT_MS = 6000


def test_what_is_decrypted_is_not_waited_for(tmp_path: Path) -> None:
    """A record may bring more than is read at once, and the socket is quiet then."""
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
            began_s = time.monotonic()
            assert handler.select([read], [], [], 30) == ([read], [], [])
            assert time.monotonic() - began_s < 5 and read.recv(100) == b" frames"[-7:]
            assert handler.select([read], [], [], 0) == ([], [], [])
            read.setblocking(True)
            read.sendall(b"x")
        serving.join()


def test_a_server_that_begins_no_handshake_is_left_soon() -> None:
    """However long a session lasts."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        handler = OneThread(ssl.create_default_context(), Patience(0.2, 60))
        with pytest.raises(TimeoutError):
            handler.create_connection(silent.getsockname(), timeout=60, hostname="localhost")
        assert time.monotonic() - began_s < 5


def test_a_server_that_is_slower_than_a_session_is_waited_for(tmp_path: Path) -> None:
    """One that is begun anew each time has only more to do."""
    authority = Identity("authority")
    shown = server_context(Identity("server", authority, hosts=["localhost"]), tmp_path / "own.pem")
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    handler = OneThread(context, Patience(0.1, 60))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                accepted, _ = listening.accept()
                time.sleep(0.5)  # as long as it takes for one
                with contextlib.suppress(OSError), shown.wrap_socket(accepted, server_side=True):
                    return

        serving = threading.Thread(target=serve, daemon=True)  # it waits for ever where none is waited for
        serving.start()
        for _ in range(10):
            with contextlib.suppress(TimeoutError):
                handler.create_connection(listening.getsockname(), timeout=0.2, hostname="localhost").close()
                break
        else:
            raise AssertionError("no handshake was waited for")
        serving.join()


def test_hanging_up_leaves_the_encryption_in_place(tmp_path: Path) -> None:
    """What has come by then is never taken for something that was not encrypted."""
    authority = Identity("authority")
    shown = server_context(Identity("server", authority, hosts=["localhost"]), tmp_path / "own.pem")
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    client = Client("localhost", TIMEOUT_MS, Access(context), lambda: None)
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
    """A server works on each handshake that was given up too: a crowd that gives up soon keeps it from ending one."""
    waited, latest = list[float](), [-1, -1, -1, -1, -1, -1, 7, -1]

    async def found_at(at: HostPort, seen: int, context: ssl.SSLContext | None, patience_s: float) -> Found:
        waited.append(patience_s)
        return Found("it is slow", latest[len(waited) - 1])

    monkeypatch.setattr(zookeeper, "found_at", found_at)

    async def look() -> None:
        store = zookeeper.ZooKeeperStore("localhost:1", access=Access(ssl.create_default_context()))
        for _ in latest:
            assert await store.why() == "it is slow"

    asyncio.run(look())
    assert waited == [3, 6, 12, 24, 48, 48, 48, 3]
