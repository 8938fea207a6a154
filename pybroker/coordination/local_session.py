"""A session of a store in this process: its operations, watches, suspension and end."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .store import (
    ANY_VERSION,
    ENDED,
    Answer,
    AnyFuture,
    Create,
    Delete,
    Op,
    Session,
    SessionExpired,
    SessionState,
    Set,
    Stat,
    StoreError,
    StoreFailed,
    Watch,
    WatchEvent,
    check_multi,
    check_op,
    check_path,
    tell,
)
from .tree import Tree
from .watches import CHILD, DATA, EXIST, Watches

if TYPE_CHECKING:
    from .local import LocalStore

T = TypeVar("T")

RETRY_S = 1.0
"""Pause between attempts to end a session while the store fails."""
TIMER_SLACK_MS = 2
"""The loop's clock and the session's are rounded to milliseconds at different points."""


Work = Callable[[Tree, list[WatchEvent]], object]
Hear = Callable[..., None]


class StoreJob(NamedTuple):
    """Work on the store's tree, answered on the event loop. It must raise StoreError before it changes anything."""

    work: Work
    future: AnyFuture
    session: "LocalSession | None" = None
    watch: Hear | None = None
    """Sets the operation's watch, given its answer."""


def answer(future: AnyFuture, result: object, error: Exception | None) -> None:
    """Answer a future, unless its caller was cancelled; the operation's effect stays."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class LocalSession(Session):
    """A session of a store in this process. `suspend` and `resume` make it a client that froze or lost its network."""

    def __init__(self, store: "LocalStore", loop: asyncio.AbstractEventLoop, number: int, timeout_ms: int) -> None:
        super().__init__()
        self.id = number
        self.timeout_ms = timeout_ms
        self._store = store
        self._loop = loop
        self._watches = Watches()
        self._ended_ms: int | None = None
        self._suspended_ms: int | None = None
        self._held: deque[Callable[[], object]] = deque()
        """Sends and deliveries of a suspended session, done in order when it is resumed."""

    # -- operations ---------------------------------------------------------------------------------------------------

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> "asyncio.Future[tuple[str, Stat]]":
        return self._write(Create(path, data, ephemeral, sequential))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> "asyncio.Future[Stat]":
        return self._write(Set(path, data, version))

    def delete(self, path: str, version: int = ANY_VERSION) -> "asyncio.Future[None]":
        return self._write(Delete(path, version))

    def get(self, path: str, *, watch: Watch | None = None) -> "asyncio.Future[tuple[bytes, Stat]]":
        return self._read(path, Tree.get, watch, lambda answer: DATA)

    def exists(self, path: str, *, watch: Watch | None = None) -> "asyncio.Future[Stat | None]":
        return self._read(path, Tree.stat, watch, lambda stat: EXIST if stat is None else DATA)

    def children(self, path: str, *, watch: Watch | None = None) -> "asyncio.Future[tuple[list[str], Stat]]":
        return self._read(path, Tree.children, watch, lambda answer: CHILD)

    def multi(self, ops: Sequence[Op]) -> "asyncio.Future[list[Answer]]":
        ops = list(ops)
        return self._submit(lambda tree, events: tree.multi(ops, self.id, events), lambda: check_multi(ops))

    def _write(self, op: Op) -> AnyFuture:
        return self._submit(lambda tree, events: tree.write(op, self.id, events), lambda: check_op(op))

    def _read(
        self, path: str, read: Callable[[Tree, str], T], watch: Watch | None, kind: Callable[[T], int]
    ) -> "asyncio.Future[T]":
        def add(answer: T) -> None:
            if watch is not None and self._ended_ms is None and self.state is SessionState.CONNECTED:
                self._watches.add(kind(answer), path, watch)

        return self._submit(lambda tree, events: read(tree, path), lambda: check_path(path), add)

    def _submit(
        self,
        work: Work,
        check: Callable[[], object],
        watch: Hear | None = None,
    ) -> AnyFuture:
        job = StoreJob(work, self._loop.create_future(), self, watch)
        try:
            check()
            if self.state in ENDED:
                raise SessionExpired
        except StoreError as error:
            job.future.set_exception(error)
            return job.future
        self._when_there(lambda: self._send(job))
        return job.future

    def _send(self, job: StoreJob) -> None:
        if self._ended_ms is not None:
            answer(job.future, None, SessionExpired())
        else:
            self._store.submit(job)

    # -- life and death -----------------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Send and receive nothing until `resume`, like a client that froze; the timeout runs from now."""
        if self._suspended_ms is None:
            self._suspended_ms = self._store.clock_ms()
            self._loop.call_later((self.timeout_ms + TIMER_SLACK_MS) / 1000, self._store.expire_overdue)

    def resume(self) -> None:
        """Send and deliver what was held back, in order, including a notice of expiry."""
        self._suspended_ms = None
        while self._held and self._suspended_ms is None:
            self._held.popleft()()

    def overdue(self, now_ms: int) -> bool:
        return self._suspended_ms is not None and now_ms - self._suspended_ms >= self.timeout_ms

    @property
    def answered_ms(self) -> int:
        """The present, as a store in this process answers at once; once suspended or ended, the time of that."""
        if self._suspended_ms is not None:
            return self._suspended_ms
        return self._store.clock_ms() if self._ended_ms is None else self._ended_ms

    def expire(self) -> None:
        """End the session on the store's side; the client is notified after its ephemeral nodes are deleted."""
        if self._ended_ms is None:
            self._end().add_done_callback(lambda _: self._when_there(lambda: self._become(SessionState.EXPIRED)))

    def close(self) -> "asyncio.Future[None]":
        self.resume()
        self._become(SessionState.CLOSED)
        if self._ended_ms is None:
            return self._end()
        done: asyncio.Future[None] = self._loop.create_future()
        done.set_result(None)
        return done

    def _end(self) -> "asyncio.Future[None]":
        """Delete the ephemeral nodes; retry while the store fails, as nothing else would delete them."""
        self._ended_ms = self.answered_ms
        self._watches.clear()
        self._store.forget(self)
        finished: asyncio.Future[None] = self._loop.create_future()

        def attempt() -> None:
            job = StoreJob(lambda tree, events: tree.end_session(self.id, events), self._loop.create_future())
            self._store.submit(job).add_done_callback(settle)

        def settle(tried: "asyncio.Future[None]") -> None:
            if isinstance(tried.exception(), StoreFailed):
                self._loop.call_later(RETRY_S, attempt)
            else:
                answer(finished, None, None)

        attempt()
        return finished

    # -- events and answers -------------------------------------------------------------------------------------------

    def hear(self, event: WatchEvent) -> None:
        """Fire the watches that wait for the event."""
        for watch in self._watches.take(event):
            self._when_there(partial(tell, watch, event, f"a watch failed on {event.type.name} of {event.path}"))

    def answered(self, future: AnyFuture, result: object, error: Exception | None) -> None:
        """Hand an operation its answer."""
        self._when_there(lambda: answer(future, result, error))

    def _when_there(self, what: Callable[[], object]) -> None:
        if self._suspended_ms is None:
            what()
        else:
            self._held.append(what)
