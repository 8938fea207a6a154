"""The network of a cluster: brokers reach each other and the store through proxies, which a test can cut.

    passing ──cut──> silent: what is sent waits, no connection ends, none is refused ──heal──> passing, all of it late
            ──reset──> passing: all connections have ended, as a firewall ends them

A cut may be of one direction only. Each broker has its own proxy to each of the others, so that a proxy knows both of
its ends; a proxy that many use asks `who`. Data that a broker sent into a cut and then died is lost,
as if its host had died: its connections end. Clients connect directly to the brokers.

A proxy stops listening once it notices that nothing listens behind it, so that the death of a process is seen through
the proxy, too.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine, Mapping
from itertools import permutations
from typing import Final

from pybroker.tasks import cancel_and_wait
from pybroker.testing.lifecycle import HOST, hold_port
from pybroker.testing.loop_thread import LoopThread

STORE: Final = 0
"""The store's number among the brokers' ids."""
NOBODY: Final = -1
CHUNK_BYTES: Final = 1 << 16
REFUSES_S: Final = 0.3
"""Seconds that a proxy refuses connections after its target did, before it listens again."""


class Way:
    """A proxy before `port` of a broker or the store, for connections from `by`, or from all (NOBODY)."""

    def __init__(self, number: int, port: int, by: int) -> None:
        self.number = number
        self.port = port
        self.by = by
        self.held = hold_port()
        self.at: int = self.held.getsockname()[1]
        self.listening: asyncio.Server | None = None


class ClusterNetwork:
    """The proxies, on a thread and a loop of their own."""

    def __init__(self) -> None:
        self._silent: set[tuple[int, int]] = set()  # (sender, receiver)
        self._deaths: dict[int, int] = {}
        self._dead: set[int] = set()
        self.thread = LoopThread("network")
        self._healed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: list[Way] = []
        self._peers: weakref.WeakKeyDictionary[asyncio.StreamWriter, int] = weakref.WeakKeyDictionary()
        self._ends: weakref.WeakKeyDictionary[asyncio.StreamWriter, frozenset[int]] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Close every proxy; calling it again does nothing."""

        async def listen_no_more() -> None:
            await asyncio.gather(*(stop_listening(way.listening) for way in self._ways if way.listening is not None))

        def end() -> None:
            for way in self._ways:
                if way.listening is not None:  # it listened again meanwhile
                    way.listening.close()
                way.held.close()
            for writer in list(self._peers):
                writer.transport.abort()
            self._ways.clear()

        if self.thread.runs:
            self.thread.do(listen_no_more())
            self.thread.call(end)
            self.thread.close()

    def forked(self) -> None:
        """Mark the proxies as the parent's, in a forked child, which has no thread for them."""
        for way in self._ways:
            way.held.close()

    def way_to(self, number: int, port: int, by: int = NOBODY) -> int:
        """Return the port of a proxy before a broker's or the store's own port."""
        way = Way(number, port, by)
        self._ways.append(way)
        self.thread.do(self._listen(way))
        return way.at

    # -- faults ------------------------------------------------------------------------------------------------------

    def cut(self, *ends: int) -> None:
        """Cut every connection between any two of these ends."""
        self._change(self._silent | set(permutations(ends, 2)))

    def cut_off(self, number: int, *others: int) -> None:
        """Cut one end from each of the others, which still reach each other."""
        self._change(self._silent | {way for other in others for way in ((number, other), (other, number))})

    def cut_one_way(self, sender: int, *receivers: int) -> None:
        """Cut one direction: what `sender` sends no longer arrives, what it receives does; neither can connect to the
        other."""
        self._change(self._silent | {(sender, receiver) for receiver in receivers})

    def heal(self, *ends: int) -> None:
        """Undo the cuts between any two of these ends, or all cuts."""
        self._change({way for way in self._silent if ends and not set(way) <= set(ends)})

    def reset(self, *ends: int) -> None:
        """End the connections between any two of these ends; new ones can be made."""

        def end() -> None:
            for writer, between in list(self._ends.items()):
                if between <= set(ends):
                    writer.transport.abort()

        self.thread.call(end)

    def died(self, number: int) -> None:
        """End a dead broker's connections, and allow it no new ones until `born`."""

        def end() -> None:
            self._dead.add(number)
            self._deaths[number] = self._deaths.get(number, 0) + 1
            for writer, peer in list(self._peers.items()):
                if peer == number:
                    writer.transport.abort()

        self.thread.call(end)

    def born(self, number: int) -> None:
        """Note that a broker is about to start."""
        if number in self._dead:  # otherwise the first start would wait for the thread's other work
            self.thread.call(lambda: self._dead.discard(number))

    def _change(self, silent: set[tuple[int, int]]) -> None:
        def change() -> None:
            self._silent = silent
            healed, self._healed = self._healed, asyncio.Event()
            healed.set()

        self.thread.call(change)

    # -- the ends of a proxy -----------------------------------------------------------------------------------------

    def who(self, port: int) -> int:
        """The broker whose end of a connection has this port, for a proxy that many use; NOBODY if no broker's."""
        return NOBODY

    def lives(self, ends: frozenset[int]) -> Mapping[int, int]:
        """The number of deaths of each broker at these ends; it changes when one dies."""
        return {number: self._deaths.get(number, 0) for number in ends}

    # -- connections -------------------------------------------------------------------------------------------------

    async def _listen(self, way: Way) -> None:
        if way not in self._ways:  # the network was closed meanwhile
            return

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not self._ways:  # accepted just before the network was closed
                writer.transport.abort()
                return
            self._peers[writer] = way.by  # also if the task is cancelled before it begins
            self._begin(self._connected(way, reader, writer))

        # With start_serving=False there is no await before the server is kept, so close() always finds it.
        way.listening = await asyncio.start_server(connected, sock=hold_port(way.at), start_serving=False)
        await way.listening.start_serving()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refuse(self, way: Way) -> None:
        """Refuse connections for a while, as the proxy's target does."""
        listening, way.listening = way.listening, None
        if listening is not None:
            await stop_listening(listening)
            await asyncio.sleep(REFUSES_S)
            await self._listen(way)

    async def _connected(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        by = self.who(writer.get_extra_info("peername")[1]) if way.by == NOBODY else way.by
        there, back = (by, way.number), (way.number, by)
        ends = frozenset(there)
        lives = self.lives(ends)
        writers = [writer]
        try:
            if by not in self._dead:
                await self._passing(there, back)
            if by in self._dead:
                return
            with contextlib.suppress(OSError):
                answers, requests = await self._reach(way)
                writers.append(requests)
                self._peers[requests] = way.number
                self._ends[writer] = self._ends[requests] = ends
                both = (there, lives, reader, requests), (back, lives, answers, writer)
                pumps = [asyncio.ensure_future(self._pump(*each)) for each in both]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await cancel_and_wait(*pumps)
        finally:
            for each in writers:
                each.close()

    async def _reach(self, way: Way) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a proxy's target. Raises OSError."""
        try:
            return await asyncio.open_connection(HOST, way.port)
        except ConnectionRefusedError:
            if self.refuses(way):
                self._begin(self._refuse(way))
                for _ in range(2):
                    await asyncio.sleep(0)  # stop listening before this connection closes, to refuse a reconnect
            raise

    def refuses(self, way: Way) -> bool:
        """True if the proxy refuses connections while its target does."""
        return way.by != NOBODY

    async def _passing(self, *ways: tuple[int, int]) -> None:
        while not self._silent.isdisjoint(ways):
            await self._healed.wait()

    async def _pump(
        self,
        way: tuple[int, int],
        lives: Mapping[int, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Copy data until the sender closes, or died behind a cut; a cut also holds back the close."""
        data = b"."
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                data = b""
            if way in self._silent:
                await self._passing(way)
                if self.lives(frozenset(way)) != lives:
                    return
            writer.write(data)
            with contextlib.suppress(OSError):
                await writer.drain()


async def stop_listening(server: asyncio.Server) -> None:
    """Stop accepting, let accepted connections begin, and only then close: asyncio leaks the socket of a connection
    whose server closes before the connection's task begins."""
    for sock in server.sockets:
        asyncio.get_running_loop().remove_reader(sock)
    await asyncio.sleep(0)
    server.close()
