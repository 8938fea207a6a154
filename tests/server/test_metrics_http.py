"""The HTTP server of metrics with clients that send nothing or do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from pybroker.server.metrics import http
from pybroker.server.metrics.http import ANSWERED_MAX, SILENT_MAX, MetricsServer
from tests.harness import eventually

LARGE = b"x" * (8 << 20)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = MetricsServer(lambda: LARGE, lambda: "", lambda: "", lambda: "", lambda _: b"", lambda: b"")
    yield await server.start("127.0.0.1", 0)
    await server.close()


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


async def silent(port: int, said: bytes = b"") -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, said)
    return sock


async def ended(sock: socket.socket) -> bool:
    """Wait until the server closes the connection."""
    async with asyncio.timeout(30):
        try:
            while await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
                pass
        except ConnectionError:
            pass
    return True


async def test_health_is_answered_beside_silent_connections(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest silent connection is closed for the next; the timeout is off."""
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", None)
    held = [await silent(port, b"GET /he" if n % 2 else b"") for n in range(SILENT_MAX)]
    assert b" 200 OK\r\n" in await get(port, "/healthz")
    assert await ended(held[0])
    held += [await silent(port) for _ in range(SILENT_MAX)]
    for sock in held[1:SILENT_MAX]:
        assert await ended(sock)
    assert (await get(port, "/healthz")).endswith(b"\r\n\r\nok\n")
    for sock in held:
        sock.close()


async def test_metrics_are_answered_beside_clients_that_do_not_read(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", None)
    held = [await silent(port, b"GET /metrics HTTP/1.1\r\n\r\n") for _ in range(ANSWERED_MAX)]
    for sock in held:  # each is being answered
        assert await asyncio.get_running_loop().sock_recv(sock, 12) == b"HTTP/1.1 200"
    assert b" 200 OK\r\n" in await get(port, "/healthz")
    assert (await get(port, "/metrics")).endswith(LARGE)
    for sock in held[:2]:
        assert await ended(sock)
    for sock in held:
        sock.close()


async def test_an_answer_that_is_not_read_ends_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unread answer times out, even when only a small rest is left in the socket's buffer."""
    monkeypatch.setattr(http, "REQUEST_SECONDS_MAX", 0.2)
    server = MetricsServer(lambda: LARGE, lambda: "", lambda: "", lambda: "", lambda _: b"", lambda: b"")
    port = await server.start("127.0.0.1", 0)
    monkeypatch.setattr(asyncio.StreamWriter, "drain", lambda self: asyncio.sleep(0))
    sock = await silent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    await eventually("it is being answered", lambda: server._open)
    await eventually("its connection is closed", lambda: not server._open)
    sock.close()
    await server.close()
