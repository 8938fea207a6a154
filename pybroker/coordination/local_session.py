"""A session of a store in this process: its operations, watches, suspension and end."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .store import SessionExpired, SessionState, StoreFailed, WatchEvent, tell
from .tree_session import StoreJob, TreeSession, answer

if TYPE_CHECKING:
    from .local import LocalStore

RETRY_S = 1.0
"""Pause between attempts to end a session while the store fails."""
TIMER_SLACK_MS = 2
"""The loop's clock and the session's are rounded to milliseconds at different points."""


class LocalSession(TreeSession):
    """A session of a store in this process. `suspend` and `resume` make it a client that froze or lost its network."""

    def __init__(self, store: "LocalStore", loop: asyncio.AbstractEventLoop, number: int, timeout_ms: int) -> None:
        super().__init__(loop)
        self.id = number
        self.timeout_ms = timeout_ms
        self._store = store
        self._ended_ms: int | None = None
        self._suspended_ms: int | None = None
        self._held: deque[Callable[[], object]] = deque()
        """Sends and deliveries of a suspended session, done in order when it is resumed."""

    # -- operations ---------------------------------------------------------------------------------------------------

    def _queue(self, job: StoreJob) -> None:
        self._when_there(lambda: self._send(job))

    @property
    def _may_watch(self) -> bool:
        return self._ended_ms is None and super()._may_watch

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

    def answered(self, job: StoreJob, result: object, error: Exception | None) -> None:
        answered = super().answered
        self._when_there(lambda: answered(job, result, error))

    def _when_there(self, what: Callable[[], object]) -> None:
        if self._suspended_ms is None:
            what()
        else:
            self._held.append(what)
