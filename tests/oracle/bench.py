"""A bare listener in front of the slow plane, with requests that the test scripts."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pybroker.decisions.caller import Caller, Disconnect
from pybroker.server.api.responder import Answer, Waiting
from pybroker.server.network.listener import Listener, ListenerLimits
from tests.oracle.plane import SlowPlane
from tests.oracle.pool import Pool

STALL_SECONDS = 1.0
LIMITS = ListenerLimits(
    idle_seconds_max=None,
    connections_max=1000,
    connections_per_ip_max=1000,
    backlog=128,
    send_buffer_bytes=None,
    receive_buffer_bytes=None,
)


class Script:
    """A responder that does what each frame says.

    echo:x    answers x                        wait:x    answers x once the test calls `released[x].set()`
    silent:x  no answer                        news:x    like wait, and is cancelled when the client disconnects
    big:n     answers n bytes                  close:x   closes the connection
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.done: list[str] = []
        self.released: dict[str, asyncio.Event] = {}

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        text = bytes(frame).decode("latin-1")
        verb, _, rest = text.partition(":")
        self.seen.append(text[:40])
        if verb in ("wait", "news"):
            self.released.setdefault(rest, asyncio.Event())
            return Waiting(self._wait(rest), abandon=verb == "news")
        if verb == "close":
            raise Disconnect(rest)
        if verb == "silent":
            return None
        return [b"x" * int(rest)] if verb == "big" else [rest.encode("latin-1")]

    async def _wait(self, name: str) -> Answer:
        await self.released[name].wait()
        self.done.append(name)
        return [name.encode()]


class Client:
    """A raw connection that sends and receives frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *frames: str) -> None:
        for frame in frames:
            body = frame.encode("latin-1")
            self.writer.write(struct.pack(">i", len(body)) + body)

    async def answer(self) -> str:
        async with asyncio.timeout(5):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return (await self.reader.readexactly(size)).decode("latin-1")

    async def closed(self) -> bool:
        """True if the server closes the connection without further bytes."""
        async with asyncio.timeout(5):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


class Bench:
    """One listener on a free port, its script, and clients that are closed at the end."""

    def __init__(self) -> None:
        self.script = Script()
        self.pool = Pool(1 << 30)
        self.listener: Listener | None = None
        self.plane: SlowPlane | None = None
        self._clients: list[Client] = []

    def start(self, pool: Pool | None = None, request_bytes_max: int = 1 << 20, **limits: object) -> Listener:
        self.pool = pool or self.pool
        self.listener = Listener("PLAINTEXT", replace(LIMITS, **limits))  # type: ignore[arg-type]
        self.listener.bind("127.0.0.1", 0)
        self.plane = SlowPlane(self.pool, request_bytes_max)
        self.plane.open(self.script, self.listener.closings)
        self.listener.open(self.script, self.plane)
        return self.listener

    async def stop(self, seconds: float) -> None:
        """Stop as a broker does: the plane first, then the listener."""
        assert self.listener is not None and self.plane is not None
        self.plane.finish(STALL_SECONDS)
        await self.listener.close(seconds)
        self.plane.close()

    async def client(self) -> Client:
        assert self.listener is not None
        client = Client(*await asyncio.open_connection("127.0.0.1", self.listener.port))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.writer.close()
        if self.listener is not None:
            for event in self.script.released.values():
                event.set()
            await self.stop(1)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.close()
