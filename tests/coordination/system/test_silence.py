"""When a server of ZooKeeper or etcd hangs or is slow, a session moves to another server or waits longer."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator

import pytest

from pybroker.coordination.commit import commit, read
from pybroker.coordination.etcd.link import Servers
from pybroker.coordination.etcd.store import EtcdStore
from pybroker.coordination.store import Create, SessionState
from pybroker.coordination.zookeeper import ZooKeeperSession
from pybroker.development.etcd_server import Etcd
from pybroker.development.server_process import HOST
from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.model import HostPort
from tests.harness import eventually

GRANT_MS = 6000


class Slow:
    """A minimal ZooKeeper server for sessions, which delays each answer by `late_s`."""

    def __init__(self, late_s: float, grant_ms: int = GRANT_MS) -> None:
        self.late_s = late_s
        self.grant_ms = grant_ms
        self.connections = 0

    async def open(self) -> ZooKeeperSession:
        """Start the server; return a session that is not opened yet."""
        await self.begin()
        return self.session()

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def session(self) -> ZooKeeperSession:
        return ZooKeeperSession(f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}", self.grant_ms)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readexactly(4)
            if head == b"srvr":
                writer.write(b"Zookeeper version: 3.8.4-x, built on\n")
                return
            self.connections += 1
            await reader.readexactly(struct.unpack("!i", head)[0])
            await asyncio.sleep(self.late_s)
            answer = struct.pack("!iiqi", 0, self.grant_ms, 0x1234, 16) + b"p" * 16 + b"\0"
            writer.write(struct.pack("!i", len(answer)) + answer)
            while True:
                (size,) = struct.unpack("!i", await reader.readexactly(4))
                xid, _ = struct.unpack("!ii", (await reader.readexactly(size))[:8])
                answer = struct.pack("!iqi", xid, 1, 0 if xid == -2 else -101)
                writer.write(struct.pack("!i", len(answer)) + answer)

    def close(self) -> None:
        self._server.close()

    async def end(self) -> None:
        """Close the server and its connections before the loop ends."""
        self.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.parametrize("late_s", [0.0, 1.5, 3.2])
async def test_a_server_that_is_slow_with_a_session_is_waited_for(late_s: float) -> None:
    """A server that is slow to create a session gets more time at each attempt, though the first attempt is short."""
    server = Slow(late_s)
    session = await server.open()
    await session.open(15)
    assert session.state is SessionState.CONNECTED
    assert server.connections == {0.0: 1, 1.5: 2, 3.2: 3}[late_s]
    await session.close()
    server.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late_s: float) -> None:
    """Write each piece of a stream `late_s` after it came."""
    loop = asyncio.get_running_loop()
    while piece := await reader.read(1 << 16):
        loop.call_later(late_s, writer.write, piece)


@contextlib.asynccontextmanager
async def late(port: int, late_s: float) -> AsyncIterator[int]:
    """A port that leads to another one, and passes each answer on `late_s` after it came."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(HOST, port)
        writers.extend((writer, requests))
        both = [asyncio.ensure_future(pass_on(*way)) for way in ((reader, requests, 0), (answers, writer, late_s))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, requests):
            each.transport.abort()
        await asyncio.gather(*both, return_exceptions=True)

    server = await asyncio.start_server(connected, HOST, 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()
    for writer in writers:
        writer.transport.abort()
    await eventually("all have ended", lambda: all(writer.transport.is_closing() for writer in writers))


@pytest.mark.parametrize("late_s", [0.0, 2.2])
async def test_an_etcd_that_is_slow_with_each_answer_is_waited_for(late_s: float) -> None:
    """Each round gives the servers more time, so that a session opens and works, though an answer takes longer than
    the first round waits."""
    with Etcd() as etcd:
        async with late(etcd.servers[0].port, late_s) as port:
            store = EtcdStore(Servers([HostPort(HOST, port)]), connection_timeout_ms=60_000)
            session = await store.session(GRANT_MS)
            await commit(session, [Create("/mine", ephemeral=True)])
            _, made = await read(session, "/mine")
            assert made.ephemeral_owner == session.id
            await store.close()


@pytest.mark.java
async def test_a_server_that_stands_still_is_left_for_another() -> None:
    """A session leaves any server that hangs for another one, and keeps its id and ephemeral node."""
    with ZooKeeper(servers=3) as ensemble:
        session = ZooKeeperSession(ensemble.connect, GRANT_MS)
        await session.open(10)
        heard: list[SessionState] = []
        session.listen(heard.append)
        await session.create("/mine", ephemeral=True)
        for server in ensemble.servers:
            ensemble.pause(server.number)
            before = time.monotonic()
            while time.monotonic() - before < 1.2 * GRANT_MS / 1000:
                await asyncio.sleep(0.1)
            await asyncio.wait_for(session.exists("/"), 10)
            ensemble.resume(server.number)
            await asyncio.sleep(1)
        found = await session.exists("/mine")
        assert found is not None and found.ephemeral_owner == session.id
        assert SessionState.DISCONNECTED in heard and SessionState.EXPIRED not in heard
        await session.close()


@pytest.mark.java
async def test_the_end_of_a_session_waits_for_no_server_that_stands_still() -> None:
    with ZooKeeper() as server:
        session = ZooKeeperSession(server.connect, GRANT_MS)
        await session.open(10)
        server.pause()
        await asyncio.wait_for(session.close(), 3)
        server.resume()
