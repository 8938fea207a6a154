"""The network of a cluster, which a test can cut: brokers reach each other and the store through proxies.

    passing ──cut──> silent: what is sent waits, no connection ends, nobody is refused ──heal──> passing, all of it late
            ──reset──> passing: all connections have ended, as a firewall ends them

A cut may be of one direction alone. Each broker has ways of its own to each of the others, so that a proxy knows who is
at either end; where many use the same way, `who` finds out. What a broker had sent that died behind the cut is lost
with it, as if its host had died: its connections end. Clients go straight to the brokers.

A way is as its end is: where nobody listens, nobody listens before it either, once that was noticed, so that the death
of a process is seen through a proxy, too.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine, Mapping
from itertools import permutations
from typing import Final

from pybroker.tasks import cancel_and_wait
from pybroker.testing.life import HOST, hold_port
from pybroker.testing.loop import LoopThread

STORE: Final = 0
"""Its number among the brokers."""
NOBODY: Final = -1
CHUNK_BYTES: Final = 1 << 16
REFUSES_S: Final = 0.3
"""So long does a way refuse whose end did, before it looks again."""


class Way:
    """A proxy before `port` of a broker or the store; `by` alone uses it, or anybody (NOBODY)."""

    def __init__(self, number: int, port: int, by: int) -> None:
        self.number = number
        self.port = port
        self.by = by
        self.held = hold_port()
        self.at: int = self.held.getsockname()[1]
        self.listening: asyncio.Server | None = None


class Network:
    """Proxies on a thread and a loop of their own."""

    def __init__(self) -> None:
        self._silent: set[tuple[int, int]] = set()  # from whom to whom
        self._deaths: dict[int, int] = {}
        self._dead: set[int] = set()
        self.thread = LoopThread("network")
        self._healed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: list[Way] = []
        self._peers: weakref.WeakKeyDictionary[asyncio.StreamWriter, int] = weakref.WeakKeyDictionary()
        self._ends: weakref.WeakKeyDictionary[asyncio.StreamWriter, frozenset[int]] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """No proxy is left; calling it again does nothing."""

        async def listen_no_more() -> None:
            await asyncio.gather(*(stop_listening(way.listening) for way in self._ways if way.listening is not None))

        def end() -> None:
            for way in self._ways:
                if way.listening is not None:  # it did again, meanwhile
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
        """In a forked child: its ways are the parent's, and no thread of it is here."""
        for way in self._ways:
            way.held.close()

    def way_to(self, number: int, port: int, by: int = NOBODY) -> int:
        """The port of a proxy before a broker's or the store's own."""
        way = Way(number, port, by)
        self._ways.append(way)
        self.thread.do(self._listen(way))
        return way.at

    # -- faults ------------------------------------------------------------------------------------------------------

    def cut(self, *ends: int) -> None:
        """Nothing passes between any two of these any more."""
        self._change(self._silent | set(permutations(ends, 2)))

    def cut_off(self, number: int, *others: int) -> None:
        """Nothing passes between one and each of the others, who hear each other."""
        self._change(self._silent | {way for other in others for way in ((number, other), (other, number))})

    def cut_one_way(self, sender: int, *receivers: int) -> None:
        """What one sends arrives there no more, and it hears them still; neither gets a new connection to the other."""
        self._change(self._silent | {(sender, receiver) for receiver in receivers})

    def heal(self, *ends: int) -> None:
        """Between any two of these, or everywhere."""
        self._change({way for way in self._silent if ends and not set(way) <= set(ends)})

    def reset(self, *ends: int) -> None:
        """The connections between any two of these end; new ones are made."""

        def end() -> None:
            for writer, between in list(self._ends.items()):
                if between <= set(ends):
                    writer.transport.abort()

        self.thread.call(end)

    def died(self, number: int) -> None:
        """A broker is dead: its connections end, and it makes none, until it is said to be `born` again."""

        def end() -> None:
            self._dead.add(number)
            self._deaths[number] = self._deaths.get(number, 0) + 1
            for writer, peer in list(self._peers.items()):
                if peer == number:
                    writer.transport.abort()

        self.thread.call(end)

    def born(self, number: int) -> None:
        """A broker is about to start."""
        if number in self._dead:  # or the first start would wait for what the thread does
            self.thread.call(lambda: self._dead.discard(number))

    def _change(self, silent: set[tuple[int, int]]) -> None:
        def change() -> None:
            self._silent = silent
            healed, self._healed = self._healed, asyncio.Event()
            healed.set()

        self.thread.call(change)

    # -- who is at the ends of a way ---------------------------------------------------------------------------------

    def who(self, port: int) -> int:
        """The broker that has this port as its own end of a connection, where many use a way; NOBODY if none has."""
        return NOBODY

    def lives(self, ends: frozenset[int]) -> Mapping[int, int]:
        """What is another one once a broker at one of these ends has died."""
        return {number: self._deaths.get(number, 0) for number in ends}

    # -- connections -------------------------------------------------------------------------------------------------

    async def _listen(self, way: Way) -> None:
        if way not in self._ways:  # all was closed meanwhile
            return

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not self._ways:  # it was accepted just before all was closed
                writer.transport.abort()
                return
            self._peers[writer] = way.by  # of a task that is cancelled before it begins, too
            self._begin(self._connected(way, reader, writer))

        # Who closes meanwhile finds it: without `start_serving` nothing is waited for before it is kept.
        way.listening = await asyncio.start_server(connected, sock=hold_port(way.at), start_serving=False)
        await way.listening.start_serving()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refuse(self, way: Way) -> None:
        """Refuse for a while, as the end of the way does."""
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
        """Connect to the end of a way. Raises OSError."""
        try:
            return await asyncio.open_connection(HOST, way.port)
        except ConnectionRefusedError:
            if self.refuses(way):
                self._begin(self._refuse(way))
                for _ in range(2):
                    await asyncio.sleep(0)  # whoever comes back, for this connection closes, is refused already
            raise

    def refuses(self, way: Way) -> bool:
        """Does a way refuse while its end does?"""
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
        """Until the sender has closed, which is not heard through a cut either, or has died behind one."""
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
    """Accept no more, let what was accepted begin, and only then close: asyncio forgets the socket of a connection
    whose server went before it began, and leaves it open."""
    for sock in server.sockets:
        asyncio.get_running_loop().remove_reader(sock)
    await asyncio.sleep(0)
    server.close()
