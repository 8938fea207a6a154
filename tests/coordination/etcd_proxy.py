"""A proxy between a client and etcd that passes requests on and breaks the connections on request."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable

from pybroker.coordination.memory import Fate

HEAD_END = b"\r\n\r\n"
PIECE = 1 << 16


class EtcdProxy:
    """One client's connections to etcd; `fate` is called for each request of an operation, not for those that load the
    tree or keep the lease."""

    def __init__(self, port: int) -> None:
        self.fate: Callable[[], Fate] = lambda: Fate.ANSWERED
        self.port = 0
        self._target = port
        self._there = True
        self._passing = asyncio.Event()
        self._passing.set()
        self.watching = asyncio.Event()
        """Cleared by a test to hold back what watches bring."""
        self.watching.set()
        self.kept: bytes = b""
        """The request that was lost before it took effect, last."""
        self.answered_bytes = 0
        self.latest: bytes = b""
        """The request that `fate` is called for."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._lost: asyncio.StreamReader | None = None
        """The server's side of the connection with the request whose answer must not pass; nothing else passes then."""
        self._watches: set[asyncio.StreamReader] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.break_off()
        self._server.close()
        await self._server.wait_closed()
        if self._handlers:
            await asyncio.wait(self._handlers)

    async def deliver_late(self) -> bytes:
        """Send the request that was kept, and return the answer's beginning."""
        answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
        requests.write(self.kept)
        said = await answers.read(PIECE)
        requests.close()
        return said

    def deliver_now(self, request: bytes) -> None:
        """Have a request take effect before anything else passes."""
        with socket.create_connection(("127.0.0.1", self._target)) as sock:
            sock.sendall(request)
            assert sock.recv(PIECE).startswith(b"HTTP/1.1 200")

    def break_off(self) -> None:
        """End the connections, and accept no other until `take_on`."""
        self._there = False
        self._passing.set()
        self.watching.set()
        for writer in self._writers:
            writer.transport.abort()

    def take_on(self) -> None:
        self._there = True
        self._lost = None

    def silence(self) -> None:
        """Pass nothing in either direction until `speak`."""
        self._passing.clear()

    def speak(self) -> None:
        self._passing.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if self._there:
                answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
                self._writers.add(requests)
                both = self._requests(reader, requests, answers), self._answers(answers, writer)
                ways = [asyncio.ensure_future(way) for way in both]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                requests.close()
                self._writers.discard(requests)
        writer.close()
        self._writers.discard(writer)

    async def _requests(
        self, reader: asyncio.StreamReader, requests: asyncio.StreamWriter, answers: asyncio.StreamReader
    ) -> None:
        of_lease = None
        while True:
            head = await reader.readuntil(HEAD_END)
            length = re.search(rb"Content-Length: (\d+)", head)
            assert length is not None
            body = await reader.readexactly(int(length[1]))
            await self._passing.wait()
            if of_lease is None:
                of_lease = head.startswith(b"POST /v3/lease/")
            if head.startswith(b"POST /v3/watch"):
                self._watches.add(answers)
            counts = not of_lease and b'"limit"' not in body and head.startswith(b"POST /v3/kv/")
            self.latest = head + body if counts else b""
            fate = self.fate() if counts and self._lost is None else Fate.ANSWERED
            if fate is Fate.LOST_BEFORE:
                self.kept = head + body
                self.break_off()
            if not self._there:
                return
            if fate is Fate.LOST_AFTER:
                self._lost = answers
            requests.write(head + body)

    async def _answers(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await answers.read(PIECE):
            await self._passing.wait()
            if answers in self._watches:
                await self.watching.wait()
            if self._lost is answers:
                self.break_off()
            if not self._there:
                return
            if self._lost is None:
                self.answered_bytes += len(piece)
                writer.write(piece)
