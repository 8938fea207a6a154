"""The inbox of one term of the controller: it executes work one piece at a time, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pybroker import errors
from pybroker.coordination.store import StoreError, StoreFailed
from pybroker.errors import KafkaError

T = TypeVar("T")
Work = Callable[[], Awaitable[object]]
"""An entry of the inbox."""


class Inbox:
    """Work for the controller on broker `broker_id`; `put`, `once` and `ask` may be called while `work` runs."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._entries: asyncio.Queue[Work] = asyncio.Queue()
        self._queued: set[str] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, work: Work) -> None:
        self._entries.put_nowait(work)

    def once(self, name: str, work: Work) -> None:
        """Add `work` unless an entry of this name waits already: many watches may fire before it is executed."""
        if name in self._queued:
            return
        self._queued.add(name)

        async def begin() -> None:
            self._queued.discard(name)
            await work()

        self.put(begin)

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Execute a request in its turn and return its result. Raises NOT_CONTROLLER, and what the request raises."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def begin() -> None:
            try:
                found = await work()
            except Exception as problem:
                if not answer.done():
                    answer.set_exception(problem)
                over = getattr(problem, "code", None) == errors.NOT_CONTROLLER
                # A damaged or unreadable node fails the request that needs it, not the term.
                if over or (isinstance(problem, StoreError) and not isinstance(problem, StoreFailed)):
                    raise
            else:
                if not answer.done():
                    answer.set_result(found)

        self.put(begin)
        ends: list[asyncio.Future[T] | asyncio.Future[None]] = [answer, self._ended]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise KafkaError(errors.NOT_CONTROLLER, f"broker {self._broker_id} is no longer the controller")
        return answer.result()

    async def work(self) -> None:
        """Execute entries until one raises."""
        while True:
            await (await self._entries.get())()

    def close(self) -> None:
        """End the term: answer waiting requests with NOT_CONTROLLER, and execute no further entry."""
        self._ended.set_result(None)
        while not self._entries.empty():
            self._entries.get_nowait()
