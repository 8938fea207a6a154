"""The HTTP server of metrics: GET /metrics and the paths below, one response for each connection.

healthz   liveness: 200 while the event loop runs and a log dir is usable
readyz    readiness: 200 while the broker serves all its partitions; also with full log dirs, which the body names: they
          serve reads, and requests that free space must reach this broker
changes   the last changes of all partitions, or of one: ?partition=TOPIC-NUMBER
epochs    the epochs of the broker's registration, and of its controller
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs

from pybroker.tasks import cancel_and_wait

REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 5.0
ANSWERED_MAX = 16
SILENT_MAX = 64
"""The limits of connections being answered, and of those that have not sent a request yet. One more closes the oldest
of its kind, so that health probes are served despite any number of clients that send or read nothing."""
TEXT = "text/plain; charset=utf-8"
JSON_LINES = "application/x-ndjson"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """One listening socket. `metrics` and `changes` (with a partition, or "") are called on a thread. `health` and
    `ready` return what is wrong, or "", and `full` the log dirs that are full; `epochs` returns JSON."""

    def __init__(
        self, metrics: Callable[[], bytes], health: Callable[[], str], ready: Callable[[], str],
        full: Callable[[], str], changes: Callable[[str], bytes], epochs: Callable[[], bytes],
    ) -> None:  # fmt: skip
        self._metrics = metrics
        self._changes = changes
        self._epochs = epochs
        self._full = full
        self._checks = {"/healthz": health, "/readyz": ready}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # the oldest first, as in `_answered`
        self._answered: dict[asyncio.Task[None], None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host or None, port, limit=REQUEST_BYTES_MAX)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is None:
            return
        for sock in self._server.sockets:
            with contextlib.suppress(OSError):  # a forked process may have the socket open too
                sock.shutdown(socket.SHUT_RDWR)
        self._server.close()
        await cancel_and_wait(*self._open)
        await self._server.wait_closed()
        self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                _take_place(task, self._silent, SILENT_MAX)
                head = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(task, None)
                _take_place(task, self._answered, ANSWERED_MAX)
                await self._serve(head, writer)
                writer.close()
                await writer.wait_closed()  # the client has read its response, or the time is over
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            writer.transport.abort()  # the client is gone, too slow or lost its place, or the server stops
        finally:
            for held in (self._silent, self._answered):
                held.pop(task, None)
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled, it would be logged as a failure
                await writer.wait_closed()

    async def _serve(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            status, kind, body = HTTPStatus.BAD_REQUEST, TEXT, b"not HTTP/1\n"
        elif words[0] not in ("GET", "HEAD"):
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"only GET and HEAD are allowed\n"
        else:
            status, kind, body = await self._answer(*words[1].partition("?")[::2])
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(["Allow: GET, HEAD"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if words[:1] == ["HEAD"] else body))
        await writer.drain()

    async def _answer(self, path: str, query: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/metrics":
            return HTTPStatus.OK, PROMETHEUS, await asyncio.to_thread(self._metrics)
        if path == "/changes":
            try:
                partition = parse_qs(query, max_num_fields=1).get("partition", [""])[0]
            except ValueError:
                return HTTPStatus.BAD_REQUEST, TEXT, b"/changes, or /changes?partition=TOPIC-NUMBER\n"
            return HTTPStatus.OK, JSON_LINES, await asyncio.to_thread(self._changes, partition)
        if path == "/epochs":
            return HTTPStatus.OK, JSON_LINES, self._epochs()
        check = self._checks.get(path)
        if check is None:
            return HTTPStatus.NOT_FOUND, TEXT, b"/metrics, /healthz, /readyz, /changes, /epochs\n"
        wrong = check()
        status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
        full = self._full() if path == "/readyz" else ""
        return status, TEXT, f"{wrong or full or 'ok'}\n".encode()


def _take_place(task: asyncio.Task[None], among: dict[asyncio.Task[None], None], most: int) -> None:
    """Count a connection in a group, and close the oldest of the group if there are too many."""
    if len(among) >= most:
        oldest = next(iter(among))
        del among[oldest]
        oldest.cancel()
    among[task] = None
