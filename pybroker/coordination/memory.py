"""The store in memory, on the event loop: no thread, no file, and the same answers in the same order each time.

What was submitted in one turn of the loop is done in the next, as one batch. It ends with its process; for tests and
simulations, whose clocks are their own, and who say when a session loses its connection:

    CONNECTED --> DISCONNECTED    at an operation, before or after it takes effect (`fate`), or at once (`disconnect`)
    DISCONNECTED --> CONNECTED    by `reconnect`, or, once the session's timeout is over, EXPIRED

`suspend` is the silence before: nothing passes, nobody knows why, and `resume` or `disconnect` ends it.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any

from pybroker.clock import boot_ms, wall_ms

from .local import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, LocalStore, run
from .local_session import Job, LocalSession, answer
from .store import ConnectionLoss, SessionExpired, SessionState, StoreClosed, StoreError, WatchEvent
from .tree import IN_MEMORY, Tree


class Fate(Enum):
    """What becomes of an operation that is sent, and of the connection behind it."""

    ANSWERED = "answered"
    LOST_BEFORE = "lost before it took effect"
    LOST_AFTER = "lost after it took effect"


class MemorySession(LocalSession):
    """A session whose connection breaks when a test says so."""

    _store: "MemoryStore"
    fate: Callable[[], Fate]
    """Asked for each operation as it is sent; what was sent behind one that is lost has no effect."""

    def __init__(self, store: LocalStore, loop: asyncio.AbstractEventLoop, number: int, timeout_ms: int) -> None:
        super().__init__(store, loop, number, timeout_ms)
        self.fate = lambda: Fate.ANSWERED
        self._unanswered: dict[asyncio.Future[Any], None] = {}
        self._lost: asyncio.Future[Any] | None = None
        """The operation at which the connection broke, until the client has heard of it."""

    def disconnect(self) -> None:
        """Break the connection, and have the client hear of it: operations without an answer fail with ConnectionLoss.

        Those that the store has not come to have no effect; those whose answer is held back (`suspend`) have had it."""
        if self.state is not SessionState.CONNECTED:
            return
        self.suspend()
        self._store.withdraw(self)
        self._watches.clear()
        self._held.clear()
        self._lost = None
        self._become(SessionState.DISCONNECTED)
        self._fail(ConnectionLoss)

    def reconnect(self) -> None:
        """Reach the store again: what was submitted meanwhile is sent, or refused if the session's time is up."""
        if self.state is SessionState.DISCONNECTED:
            self._store.expire_overdue()
            self._become(SessionState.CONNECTED if self._ended_ms is None else SessionState.EXPIRED)
            super().resume()

    def resume(self) -> None:
        if self.state is not SessionState.DISCONNECTED:
            super().resume()

    def close(self) -> "asyncio.Future[None]":
        """Without a connection nobody tells the store, which ends the session when its time is up."""
        if self._lost is not None:
            self.disconnect()
        if self.state is not SessionState.DISCONNECTED:
            return super().close()
        self._become(SessionState.CLOSED)
        self._held.clear()
        self._fail(SessionExpired)
        done: asyncio.Future[None] = self._loop.create_future()
        done.set_result(None)
        return done

    def answered(self, future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
        if future is self._lost:
            self._when_there(self.disconnect)
        else:
            super().answered(future, result, error)

    def _submit(
        self,
        work: Callable[[Tree, list[WatchEvent]], Any],
        check: Callable[[], object],
        watch: Callable[[Any], None] | None = None,
    ) -> "asyncio.Future[Any]":
        future = super()._submit(work, check, watch)
        self._unanswered[future] = None
        future.add_done_callback(lambda _: self._unanswered.pop(future, None))
        return future

    def _send(self, job: Job) -> None:
        if self._lost is not None:
            return  # it is behind on the same connection
        fate = self.fate() if self._ended_ms is None else Fate.ANSWERED
        if fate is not Fate.ANSWERED:
            self._lost = job.future
            job = job._replace(watch=None)
        if fate is Fate.LOST_BEFORE:
            job = job._replace(work=lambda tree, events: None)
        super()._send(job)

    def _fail(self, error: type[StoreError]) -> None:
        """Fail what has no answer, in the order in which it was submitted."""
        for future in list(self._unanswered):
            answer(future, None, error())


class MemoryStore(LocalStore):
    """A store that nothing is left of."""

    session_type = MemorySession

    def __init__(
        self,
        *,
        timeouts_ms: tuple[int, int] = (TIMEOUT_MS_MIN, TIMEOUT_MS_MAX),
        clock_ms: Callable[[], int] = boot_ms,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """As of EmbeddedStore."""
        super().__init__(timeouts_ms, clock_ms)
        self._wall_ms = wall_ms
        self._tree: Tree | None = None
        self._waiting: list[Job] = []

    async def open(self) -> None:
        self._tree = Tree(IN_MEMORY, self._wall_ms)

    async def close(self) -> None:
        if self._tree is not None:
            self._turn()
            self._tree.close()
            self._tree = None

    async def session(self, timeout_ms: int) -> MemorySession:
        session = await super().session(timeout_ms)
        assert isinstance(session, MemorySession)
        return session

    def withdraw(self, session: MemorySession) -> None:
        """Forget what a session has submitted and is not done."""
        self._waiting = [job for job in self._waiting if job.session is not session]

    def submit(self, job: Job) -> "asyncio.Future[Any]":
        if self._tree is None:
            answer(job.future, None, StoreClosed())
            return job.future
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(job)
        return job.future

    def _turn(self) -> None:
        if self._tree is not None and self._waiting:
            jobs, self._waiting = self._waiting, []
            self.deliver(run(self._tree, jobs))
