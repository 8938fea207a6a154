"""What the tests of the server share: a bare listener whose requests are told by the test, and whole brokers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.cluster.caller import Caller, Disconnect
from pybroker.server.connection import Answer, Waiting
from pybroker.server.listener import Limits, Listener
from pybroker.server.pool import Pool
from tests.server.cast import SETS as JUDGED
from tests.server.cast import Cast
from tests.server.live import Live, Wire

LIMITS = Limits(
    request_bytes_max=1 << 20,
    idle_seconds_max=None,
    connections_max=1000,
    connections_per_ip_max=1000,
    backlog=128,
    send_buffer_bytes=None,
    receive_buffer_bytes=None,
)


class Script:
    """A responder that does as each frame says.

    echo:x    answers x                        wait:x    answers x once the test says `released[x].set()`
    silent:x  no answer                        news:x    as wait, and is given up when the client goes
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
    """A raw connection: frames by hand."""

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
        """Whether the server closes, with nothing more said."""
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
        self._clients: list[Client] = []

    def start(self, pool: Pool | None = None, **limits: object) -> Listener:
        self.pool = pool or self.pool
        self.listener = Listener("PLAINTEXT", self.pool, replace(LIMITS, **limits))  # type: ignore[arg-type]
        self.listener.bind("127.0.0.1", 0)
        self.listener.open(self.script)
        return self.listener

    async def client(self) -> Client:
        assert self.listener is not None
        client = Client(*await asyncio.open_connection("127.0.0.1", self.listener.port))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.writer.close()
        if self.listener is not None and not self.listener.closing:
            for event in self.script.released.values():
                event.set()
            await self.listener.close(1)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked `both_planes` runs with the native plane, and once more with Python's slow truth alone. The planes
    differ in Produce, Fetch, connections and throttling; all other requests come to the same handlers."""
    given = any(mark.args[0] == "live" for mark in metafunc.definition.iter_markers("parametrize"))
    if "live" in metafunc.fixturenames and not given and metafunc.definition.get_closest_marker("both_planes"):
        metafunc.parametrize("live", ["native", "python"], indirect=True)


@pytest.fixture
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A broker that runs, on a data directory of its own; see `pytest_generate_tests` for its plane."""
    made = Live(tmp_path / "data", native_plane=getattr(request, "param", "native") == "native")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def wire(live: Live) -> Wire:
    return await live.connect()


@pytest.fixture
async def cast(tmp_path: Path) -> AsyncIterator[Cast]:
    made = Cast(Live(tmp_path / "data", JUDGED))
    await made.start()
    yield made
    await made.live.stop()
