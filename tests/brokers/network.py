"""The network of a cluster, which a test can cut: brokers reach each other and ZooKeeper through proxies that know who
is at either end.

    passing ──cut──> silent: what is sent waits, no connection ends, nobody is refused ──heal──> passing, all of it late

What a broker had sent that died behind the cut is lost with it, as if its host had died: its connections end.
Clients go straight to the brokers. Where nothing listens, a connection is taken and then closed: nobody is refused, so
that the death of a process has no proof, and takes a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

from tests.harness import HOST

ZOOKEEPER = 0
"""Its number among the brokers."""
CHUNK_BYTES = 1 << 16


class Network:
    """Proxies on a loop of their own; `pids` says which process each broker is now."""

    def __init__(self) -> None:
        self.pids: Callable[[], Mapping[int, int]] = dict
        self._silent: set[frozenset[int]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._healed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in list(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0)  # which is told in the loop's next turn

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def way_to(self, number: int, port: int) -> int:
        """The port of a proxy before a broker's or ZooKeeper's own."""

        async def listen() -> asyncio.Server:
            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self._writers.add(writer)  # of a task that is cancelled before it begins, too
                task = asyncio.ensure_future(self._connected(number, port, reader, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            return await asyncio.start_server(connected, HOST, 0)

        server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    # -- faults ------------------------------------------------------------------------------------------------------

    def cut(self, *ends: int) -> None:
        """Nothing passes between any two of these any more."""
        self._change(self._silent | {frozenset(pair) for pair in combinations(ends, 2)})

    def cut_off(self, number: int, *others: int) -> None:
        """Nothing passes between one and each of the others, who hear each other."""
        self._change(self._silent | {frozenset((number, other)) for other in others})

    def heal(self, *ends: int) -> None:
        """Between any two of these, or everywhere."""
        self._change({way for way in self._silent if ends and not way <= set(ends)})

    def _change(self, silent: set[frozenset[int]]) -> None:
        async def change() -> None:
            self._silent = silent
            healed, self._healed = self._healed, asyncio.Event()
            healed.set()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(10)

    # -- connections -------------------------------------------------------------------------------------------------

    async def _connected(
        self, number: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        way = frozenset((number, self._who(writer.get_extra_info("peername")[1])))
        lives = self._lives(way)
        writers = [writer]
        try:
            await self._passing(way)
            with contextlib.suppress(OSError):
                answers, requests = await asyncio.open_connection(HOST, port)
                writers.append(requests)
                self._writers.add(requests)
                both = (reader, requests), (answers, writer)
                pumps = [asyncio.ensure_future(self._pump(way, lives, *each)) for each in both]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            for each in writers:
                each.close()

    async def _passing(self, way: frozenset[int]) -> None:
        while way in self._silent:
            await self._healed.wait()

    def _lives(self, way: frozenset[int]) -> dict[int, int]:
        """The processes at its ends."""
        return {number: pid for number, pid in self.pids().items() if number in way}

    async def _pump(
        self, way: frozenset[int], lives: dict[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until the sender has closed, which is not heard through a cut either, or has died behind one."""
        data = b"."
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            if way in self._silent:
                await self._passing(way)
                if self._lives(way) != lives:
                    return
            writer.write(data)
            with contextlib.suppress(OSError):
                await writer.drain()

    def _who(self, port: int) -> int:
        """The broker whose process has this port as its own end of a connection; -1 if none has."""
        ours = f"{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{ours}")}
        for number, pid in self.pids().items():
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                            return number
        return -1
