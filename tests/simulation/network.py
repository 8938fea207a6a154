"""The network between the processes of a simulation: each message takes a while, and each way can be cut.

    a way is cut        its messages wait, as TCP sends them again; connections in either direction fail
    a connection ends   messages in flight arrive, or not; the other end learns of it once the way is free
    a process dies      as above, and its address refuses connections
    a process is frozen its address accepts connections, and messages wait until it continues
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.virtual import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.broker import Life

DELAYS_S = (0.0003, 0.0005, 0.001, 0.002, 0.02)
SLOW_S = 0.7
CONNECT_S = 2.0
TIMEOUT_S = 30.0


class Network:
    """The live processes, by number, and the ways that are cut."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop, self.random = loop, random
        self.lives: dict[int, Life] = {}
        self.cut: set[tuple[int, int]] = set()
        self._waiting: list[tuple[tuple[int, int], Callable[[], object]]] = []
        self.slow = 0.0
        """The share of messages that are late."""

    def delay(self) -> float:
        if self.slow and self.random.random() < self.slow:
            return self.random.random() * SLOW_S
        return self.random.choice(DELAYS_S)

    def send(self, by: int, to: int, arrive: Callable[[], object]) -> None:
        """Deliver a message after a while, once the way is free."""
        self.loop.later(self.delay(), self._arrived, (by, to), arrive)

    def _arrived(self, way: tuple[int, int], arrive: Callable[[], object]) -> None:
        if way in self.cut:
            self._waiting.append((way, arrive))
        else:
            arrive()

    def heal(self, ways: Collection[tuple[int, int]] | None = None) -> None:
        """Free these ways; all with None."""
        self.cut = set() if ways is None else self.cut.difference(ways)
        waiting, self._waiting = self._waiting, []
        for (by, to), arrive in waiting:
            self.send(by, to, arrive)

    def is_cut(self, by: int, to: int) -> bool:
        return (by, to) in self.cut or (to, by) in self.cut

    async def connect(self, by: Life, number: int) -> SimLink:
        """Connect to a broker. Raises OSError, as the product does."""
        if self.is_cut(by.number, number):
            await asyncio.sleep(CONNECT_S)
            raise TimeoutError("no broker answered")
        await asyncio.sleep(self.delay())
        to = self.lives.get(number)
        if to is None or to.dead or not to.listens:
            raise ConnectionRefusedError("no broker listens")
        return SimLink(self, by, to)


class SimLink:
    """A connection between one life of a broker and one of another, with one request at a time."""

    def __init__(self, network: Network, by: Life, to: Life) -> None:
        self._network, self._by, self._to = network, by, to
        self.closed: asyncio.Future[str] = network.loop.create_future()
        self._one = asyncio.Lock()
        self._awaited: asyncio.Future[Any] | None = None
        by.links[self] = None
        to.links[self] = None

    @property
    def hung_up(self) -> bool:
        return self.closed.done()

    async def ask(self, message: Any, version: int, *, timeout_s: float = TIMEOUT_S, **_: Any) -> Any:
        async with self._one:
            if self.closed.done():
                raise ConnectionError("closed")
            loop = self._network.loop
            answer: asyncio.Future[Any] = loop.create_future()
            self._network.send(self._by.number, self._to.number, lambda: self._arrive(message, version, answer))
            self._awaited, late = answer, loop.call_later(timeout_s, self._late, answer)
            found = await answer
            late.cancel()
            if isinstance(found, OSError):
                raise found
            return found

    def _late(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_result(TimeoutError())
            self.close()

    def _arrive(self, message: Any, version: int, answer: asyncio.Future[Any]) -> None:
        """Deliver a request; one on a connection that has ended since may have arrived before the end."""
        if not self._to.dead and (not self.closed.done() or self._network.random.random() < 0.5):
            self._to.run(self._serve(message, version, answer))

    async def _serve(self, message: Any, version: int, answer: asyncio.Future[Any]) -> None:
        try:
            found = await self._to.answer(message, version)
        except ConnectionError:
            self.close()
            return
        self._network.send(self._to.number, self._by.number, lambda: self._answered(answer, found))

    def _answered(self, answer: asyncio.Future[Any], found: Any) -> None:
        if not answer.done() and not self.closed.done():
            answer.set_result(found)

    def end(self, by: Life) -> None:
        """Close one end, also when its process dies: the other end learns of it."""
        other = self._to if by is self._by else self._by
        self._network.send(by.number, other.number, self.close)

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result("closed")
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(ConnectionError("closed while it waited"))
        self._by.links.pop(self, None)
        self._to.links.pop(self, None)
