"""The network between the processes of a cluster and its store. All connections share its ways, so the process at the
end of one is found in /proc.

No connection is refused, so a process's death has no proof and takes a session: where no process listens, a connection
is accepted and then closed. A `refusing` network refuses where its end does. With `has_clients` it carries clients'
connections too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pybroker.testing import network
from pybroker.testing.network import NOBODY, STORE

__all__ = ["CLIENTS", "STORE", "Network"]

CLIENTS = -2
"""The number that stands for all clients among the brokers."""
LOOK_S = 0.02


class Network(network.ClusterNetwork):
    """A network between processes; `pids` returns the current process of each broker."""

    def __init__(self, refusing: bool = False, has_clients: bool = False) -> None:
        super().__init__()
        self.refusing = refusing
        self.has_clients = has_clients
        self._refused: set[int] = set()
        self.pids: Callable[[], Mapping[int, int]] = dict

    def refuses(self, way: network.Way) -> bool:
        return self.refusing

    def lives(self, ends: frozenset[int]) -> Mapping[int, int]:
        """The processes at these ends."""
        return {number: pid for number, pid in self.pids().items() if number in ends}

    def who(self, port: int) -> int:
        """The broker whose process has this port at its end of a connection."""
        ours = f"{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{ours}")}
        for number, pid in self.pids().items():
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                            return number
        return NOBODY

    # -- live brokers that are refused -------------------------------------------------------------------------------

    def refuse(self, number: int, *witnesses: int) -> None:
        """Refuse connections of other brokers to a live broker, and end its connections with the witnesses; all others
        go on."""
        self._refused.add(number)

        async def close() -> None:
            for way in self._to(number):
                if (listening := way.listening) is not None:
                    way.listening = None
                    await network.stop_listening(listening)

        self.thread.do(close())
        for witness in witnesses:
            self.reset(number, witness)

    def accept(self, number: int) -> None:
        """Undo `refuse`."""
        self._refused.discard(number)

        async def listen() -> None:
            for way in self._to(number):
                await self._listen(way)

        self.thread.do(listen())

    def _to(self, number: int) -> list[network.Way]:
        return [way for way in self._ways if (way.number, way.by) == (number, NOBODY)]

    async def _listen(self, way: network.Way) -> None:
        if way.listening is None and (way.by != NOBODY or way.number not in self._refused):
            await super()._listen(way)

    # -- clients -----------------------------------------------------------------------------------------------------

    async def _pump(
        self, way: tuple[int, int], lives: Mapping[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Drop the bytes of a client that closed its connection behind the cut: a commit that the client has sent again
        would otherwise be stored once more, after later ones."""
        if way[0] != CLIENTS:
            await super()._pump(way, lives, reader, writer)
            return
        while data := await read(reader):
            held = bytearray(data)
            if way in self._silent:
                await self._passing(way)
                if await has_closed(reader, held):
                    return
            writer.write(held)
            with contextlib.suppress(OSError):
                await writer.drain()


async def read(reader: asyncio.StreamReader) -> bytes:
    """Read the next bytes; none if the connection has ended, for any reason."""
    with contextlib.suppress(OSError):
        return await reader.read(network.CHUNK_BYTES)
    return b""


async def has_closed(reader: asyncio.StreamReader, held: bytearray) -> bool:
    """True if the connection has ended; bytes received meanwhile are in `held`."""
    while True:
        try:
            more = await asyncio.wait_for(read(reader), LOOK_S)
        except TimeoutError:
            return False
        if not more:
            return True
        held += more
