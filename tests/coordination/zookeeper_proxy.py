"""A proxy between a client and ZooKeeper that passes frames on and breaks the connection on request."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable

from pybroker.coordination.memory import Fate

LENGTH = struct.Struct(">i")
SRVR = b"srvr"  # a request outside sessions for the server's version
REQUEST = struct.Struct(">iiii")
"""Length, xid, operation, and the length of the path that comes first in most requests."""
FIRST_XID = 1
"""Pings and a client's other automatic requests have negative xids; the frame that opens a session has none."""
EXISTS = 3


class Cut(Exception):
    """Raised to end the connection."""


class ZooKeeperProxy:
    """One client's connection to ZooKeeper; `fate` is called for each of its requests, except those that the session
    sends itself at each interval."""

    def __init__(self, port: int) -> None:
        self.fate: Callable[[], Fate] = lambda: Fate.ANSWERED
        self.port = 0
        self._target = port
        self._there = True
        self._passing = asyncio.Event()
        self._passing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._lost: int | None = None
        """The xid of the request whose answer must not pass."""
        self._last = 0
        """The xid of the latest request that was passed on."""
        self._answered = asyncio.Event()
        """Set while every request that was passed on has its answer."""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.break_off()
        self._server.close()
        await self._server.wait_closed()

    def break_off(self) -> None:
        """End the connection, and accept no other until `take_on`."""
        self._there = False
        self._passing.set()
        for writer in self._writers:
            writer.close()

    def take_on(self) -> None:
        self._there = True

    def silence(self) -> None:
        """Pass nothing in either direction until `speak`."""
        self._passing.clear()

    def speak(self) -> None:
        self._passing.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(Cut, OSError, asyncio.IncompleteReadError):
            if not self._there:
                raise Cut
            head = await reader.readexactly(LENGTH.size)
            answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
            if head == SRVR:
                requests.write(head)
                writer.write(await answers.read())
                requests.close()
                raise Cut
            self._lost, self._last = None, 0
            self._answered.set()
            self._writers.add(requests)
            both = self._send(reader, requests, head), self._answer(answers, writer)
            ways = [asyncio.ensure_future(way) for way in both]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            requests.close()
            self._writers.discard(requests)
        writer.close()
        self._writers.discard(writer)

    async def _frame(self, reader: asyncio.StreamReader, head: bytes = b"") -> bytes:
        head = head or await reader.readexactly(LENGTH.size)
        body = await reader.readexactly(*LENGTH.unpack(head))
        await self._passing.wait()
        if not self._there:
            raise Cut
        return head + body

    async def _send(self, reader: asyncio.StreamReader, requests: asyncio.StreamWriter, head: bytes) -> None:
        requests.write(await self._frame(reader, head))
        while self._lost is None:
            frame = await self._frame(reader)
            (xid,) = LENGTH.unpack_from(frame, LENGTH.size)
            fate = self.fate() if xid >= FIRST_XID and not _is_own(frame) else Fate.ANSWERED
            if fate is Fate.LOST_BEFORE:
                await self._answered.wait()
                self._there = False
                return
            if fate is Fate.LOST_AFTER:
                self._lost = xid
            if xid >= FIRST_XID:
                self._last = xid
                self._answered.clear()
            requests.write(frame)
        await asyncio.Event().wait()  # later requests are not passed on

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await self._frame(answers))
        while True:
            frame = await self._frame(answers)
            (xid,) = LENGTH.unpack_from(frame, LENGTH.size)
            if xid == self._lost:
                self._there = False
                return
            writer.write(frame)
            if xid == self._last:
                self._answered.set()


def _is_own(frame: bytes) -> bool:
    """True for the request of a session that no caller made: exists of the root, which is the chroot here."""
    if len(frame) < REQUEST.size:
        return False
    _, _, operation, size = REQUEST.unpack_from(frame)
    return operation == EXISTS and frame[REQUEST.size : REQUEST.size + size].count(b"/") == 1
