"""The store in memory, on the event loop: no thread, no file, and the same answers in the same order each time.

Jobs submitted in one turn of the loop are done in the next, as one batch. It is for tests and simulations, which have
their own clocks and decide when a session loses its connection:

    CONNECTED --> DISCONNECTED    at an operation, before or after it takes effect (`fate`), or at once (`disconnect`)
    DISCONNECTED --> CONNECTED    by `reconnect`, or, once the session's timeout is over, EXPIRED

`suspend` is the silence before a disconnection is detected: nothing passes until `resume` or `disconnect`.
"""

import asyncio
from collections.abc import Callable
from enum import Enum

from pybroker.clock import boot_ms, wall_ms

from .local import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, LocalStore, run
from .local_session import LocalSession
from .store import AnyFuture, ConnectionLoss, SessionExpired, SessionState, StoreClosed, StoreError
from .tree import IN_MEMORY, Tree
from .tree_session import Hear, StoreJob, T, Work, answer


class Fate(Enum):
    """The fate of an operation that is sent; if it is lost, the connection breaks there."""

    ANSWERED = "answered"
    LOST_BEFORE = "lost before it took effect"
    LOST_AFTER = "lost after it took effect"


class MemorySession(LocalSession):
    """A session whose connection a test can break."""

    _store: "MemoryStore"
    fate: Callable[[], Fate]
    """Called for each operation as it is sent. Operations sent after a lost one have no effect."""

    def __init__(self, store: LocalStore, loop: asyncio.AbstractEventLoop, number: int, timeout_ms: int) -> None:
        super().__init__(store, loop, number, timeout_ms)
        self.fate = lambda: Fate.ANSWERED
        self._unanswered: dict[AnyFuture, None] = {}
        self._lost: AnyFuture | None = None
        """The operation at which the connection broke, until the client is notified of that."""

    def disconnect(self) -> None:
        """Break the connection, and notify the client: unanswered operations fail with ConnectionLoss.

        Operations that the store has not begun have no effect; those whose answer is held back (`suspend`) are done."""
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
        """Reach the store again: waiting operations are sent, or refused if the session's timeout is over."""
        if self.state is SessionState.DISCONNECTED:
            self._store.expire_overdue()
            self._become(SessionState.CONNECTED if self._ended_ms is None else SessionState.EXPIRED)
            super().resume()

    def resume(self) -> None:
        if self.state is not SessionState.DISCONNECTED:
            super().resume()

    def close(self) -> "asyncio.Future[None]":
        """End the session. Without a connection, the store does so when the session's timeout is over."""
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

    def answered(self, job: StoreJob, result: object, error: Exception | None) -> None:
        if job.future is self._lost:
            self._when_there(self.disconnect)
        else:
            super().answered(job, result, error)

    def _submit(self, work: Work, check: Callable[[T], object], what: T, watch: Hear | None = None) -> AnyFuture:
        future = super()._submit(work, check, what, watch)
        self._unanswered[future] = None
        future.add_done_callback(lambda _: self._unanswered.pop(future, None))
        return future

    def _send(self, job: StoreJob) -> None:
        if self._lost is not None:
            return  # it was sent after the lost operation, on the same connection
        fate = self.fate() if self._ended_ms is None else Fate.ANSWERED
        if fate is not Fate.ANSWERED:
            self._lost = job.future
            job = job._replace(watch=None)
        if fate is Fate.LOST_BEFORE:
            job = job._replace(work=lambda tree, events: None)
        super()._send(job)

    def _fail(self, error: type[StoreError]) -> None:
        """Fail unanswered operations, in the order in which they were submitted."""
        for future in list(self._unanswered):
            answer(future, None, error())


class MemoryStore(LocalStore):
    """A store that keeps nothing after it is closed."""

    session_type = MemorySession

    def __init__(
        self,
        *,
        timeouts_ms: tuple[int, int] = (TIMEOUT_MS_MIN, TIMEOUT_MS_MAX),
        clock_ms: Callable[[], int] = boot_ms,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Take the arguments of EmbeddedStore."""
        super().__init__(timeouts_ms, clock_ms)
        self._wall_ms = wall_ms
        self._tree: Tree | None = None
        self._waiting: list[StoreJob] = []

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
        """Drop the jobs of a session that are not done yet."""
        self._waiting = [job for job in self._waiting if job.session is not session]

    def submit(self, job: StoreJob) -> AnyFuture:
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
