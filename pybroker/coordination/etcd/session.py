"""A session of etcd: the interface of store.py on the event loop, and its thread behind it (link.py)."""

from __future__ import annotations

import asyncio

from pybroker.coordination.commit import until_answered
from pybroker.coordination.local import Outcome
from pybroker.coordination.store import (
    SessionExpired,
    SessionState,
    StoreError,
    StoreFailed,
    WatchEvent,
    tell,
)
from pybroker.coordination.tree_session import StoreJob, TreeSession, answer

from .link import EtcdLink, LinkListeners, Servers

STOP_S_MAX = 1.0
"""The time for a server to answer the end of a session."""


class EtcdSession(TreeSession):
    """A session of etcd: a lease, whose id is the session's."""

    def __init__(self, servers: Servers, timeout_ms: int) -> None:
        super().__init__(asyncio.get_running_loop())
        self.timeout_ms = timeout_ms
        self._breaks = 0
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._stopping: asyncio.TimerHandle | None = None
        listeners = LinkListeners(
            self._have_opened, self._have_refused, self._come_to, self._deliver, self._fire, self._have_ended
        )
        self.link = EtcdLink(servers, timeout_ms, self.renewals, listeners)

    async def open(self, timeout_s: float) -> None:
        """Connect to a server. Raises StoreRefused if a server refuses the login, StoreFailed if none answers in time.
        A cancelled call ends the thread."""
        try:
            self.link.start()
        except RuntimeError as problem:  # there may be no more threads
            raise StoreFailed(detail=str(problem)) from problem
        try:
            async with asyncio.timeout(timeout_s):
                await self._opened
                await until_answered(lambda: self.exists("/"))
        except TimeoutError:
            self._give_up()
            raise StoreFailed(detail=f"no etcd answered in {timeout_s:g} s: {self.why()}") from None
        except BaseException:
            self._give_up()
            raise

    def why(self) -> str:
        """Return why the servers that were tried do not serve this session."""
        return "; ".join(f"{at}: {reason}" for at, reason in list(self.link.reasons.items()) if reason)

    @property
    def answered_ms(self) -> int:
        return self.renewals.answered_ms

    @property
    def stopped(self) -> bool:
        """True once the session's thread has ended."""
        return self._ended.done()

    def give_up(self) -> str:
        """Declare the session expired if no server will continue it. Return the reason, "" if it is not expired."""
        if self.state is not SessionState.DISCONNECTED or not self.link.went_back:
            return ""
        self._become(SessionState.EXPIRED)
        self.link.stop()
        return self.link.went_back

    def close(self) -> asyncio.Future[None]:
        self._become(SessionState.CLOSED)
        if self._stopping is None and not self._ended.done():
            self.link.close()
            self._stopping = self._loop.call_later(STOP_S_MAX, self.link.stop)
        return self._ended

    def _give_up(self) -> None:
        """End a session that was not opened."""
        self._become(SessionState.CLOSED)
        self.link.stop()

    def _queue(self, job: StoreJob) -> None:
        self.link.submit(job, self._breaks)

    # -- what the link hears ------------------------------------------------------------------------------------------

    def _have_opened(self, number: int, timeout_ms: int) -> None:
        self.id, self.timeout_ms = number, timeout_ms
        answer(self._opened, None, None)

    def _have_refused(self, error: StoreError) -> None:
        answer(self._opened, None, error)

    def _come_to(self, state: SessionState) -> None:
        if state is SessionState.DISCONNECTED:
            self._breaks += 1
        if state is not SessionState.CONNECTED:
            self._watches.clear()
        self._become(state)

    def _deliver(self, outcomes: list[Outcome]) -> None:
        for job, result, error, events in outcomes:
            if job.watch is not None and error is None:
                job.watch(result)
            self._fire(events)
            if job.session is None:
                answer(job.future, result, error)
            else:
                self.answered(job, result, error)

    def _fire(self, events: list[WatchEvent]) -> None:
        for event in events:
            for watch in self._watches.take(event):
                tell(watch, event, f"a watch failed on {event.type.name} of {event.path}")

    def _have_ended(self) -> None:
        if self._stopping is not None:
            self._stopping.cancel()
        for job in self.link.left():
            answer(job.future, None, SessionExpired())
        answer(self._opened, None, StoreFailed(detail="the session ended before it was opened"))
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # it may have no reader
        answer(self._ended, None, None)
