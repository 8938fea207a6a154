"""The embedded store: the tree in a SQLite file, on a thread of its own, for any number of sessions of this process.

    caller --job--> queue --batch--> thread: run all, one commit --outcomes--> event loop: watches fire, futures answer

Whatever waits in the queue when the thread comes back is one batch and one fsync. Watches live on the event loop and
never see a change that was not committed: outcomes are walked there in order, each setting its watch or firing those of
its changes before its own future is answered.

A session lives as long as this process unless it is suspended, as a client is that froze or lost its network: then it
neither sends nor hears, and after its timeout the store ends it.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from pybroker.clock import boot_ms, wall_ms

from .embedded_session import EmbeddedSession, Job, answer
from .store import Store, StoreClosed, StoreError, StoreFailed, WatchEvent
from .tree import Tree

BATCH_JOBS_MAX = 1024
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 4_000, 40_000
"""What ZooKeeper grants with its default tick of 2 s: 2 to 20 ticks."""


class _Outcome(NamedTuple):
    job: Job
    result: Any
    error: Exception | None
    events: list[WatchEvent]


class EmbeddedStore(Store):
    """A store in one file, which one process has open at a time."""

    def __init__(
        self,
        path: str,
        *,
        timeouts_ms: tuple[int, int] = (TIMEOUT_MS_MIN, TIMEOUT_MS_MAX),
        clock_ms: Callable[[], int] = boot_ms,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`timeouts_ms` are the shortest and longest session timeouts granted; `clock_ms` is what they run on."""
        self.path = path
        self.clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._timeouts_ms = timeouts_ms
        self._jobs: queue.SimpleQueue[Job | asyncio.Future[None]] = queue.SimpleQueue()
        self._sessions: dict[int, EmbeddedSession] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Open or create the file. StoreFailed if it is damaged, another program's, or in use by another process."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name="coordination", daemon=True)
        self._thread.start()
        try:
            await opened
        except BaseException:
            self._thread = None
            raise

    async def session(self, timeout_ms: int) -> EmbeddedSession:
        """A new session, its timeout brought within what the store grants."""
        shortest, longest = self._timeouts_ms
        loop = asyncio.get_running_loop()
        number: int = await self.submit(Job(lambda tree, events: tree.new_session(), loop.create_future()))
        session = EmbeddedSession(self, loop, number, max(shortest, min(timeout_ms, longest)))
        self._sessions[number] = session
        return session

    async def close(self) -> None:
        """Finish what was submitted and close the file; ephemeral nodes that are left go when it is opened again."""
        if self._thread is None or self._loop is None:
            return
        thread, self._thread = self._thread, None
        closed: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put(closed)
        await closed
        thread.join()

    def expire_overdue(self) -> None:
        """End the suspended sessions whose time is up. The event loop's clock calls it; a test with its own must."""
        for session in [s for s in self._sessions.values() if s.overdue(self.clock_ms())]:
            session.expire()

    def submit(self, job: Job) -> "asyncio.Future[Any]":
        """Queue work for the thread; its future."""
        if self._thread is None:
            answer(job.future, None, StoreClosed())
        else:
            self._jobs.put(job)
        return job.future

    def forget(self, session: EmbeddedSession) -> None:
        self._sessions.pop(session.id, None)

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _work(self, opened: "asyncio.Future[None]") -> None:
        try:
            tree = Tree(self.path, self._wall_ms)
        except Exception as error:
            self._call(answer, opened, None, error)
            return
        self._call(answer, opened, None, None)
        closed: asyncio.Future[None] | None = None
        while closed is None:
            jobs = []
            item = self._jobs.get()
            while isinstance(item, Job):
                jobs.append(item)
                if len(jobs) == BATCH_JOBS_MAX or self._jobs.empty():
                    break
                item = self._jobs.get()
            else:
                closed = item
            if jobs:
                self._call(self._deliver, _run(tree, jobs))
        try:
            tree.close()
        finally:
            self._call(answer, closed, None, None)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            assert self._loop.is_closed()

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _deliver(self, outcomes: list[_Outcome]) -> None:
        for job, result, error, events in outcomes:
            if job.watch is not None and error is None:
                job.watch(result)
            for event in events:
                for session in list(self._sessions.values()):
                    session.hear(event)
            if job.session is None:
                answer(job.future, result, error)
            else:
                job.session.answered(job.future, result, error)


def _run(tree: Tree, jobs: list[Job]) -> list[_Outcome]:
    """Run a batch as one transaction; if that fails, each job on its own, for a full disk still lets some through."""
    outcomes = []
    try:
        for job in jobs:
            events: list[WatchEvent] = []
            try:
                outcomes.append(_Outcome(job, job.work(tree, events), None, events))
            except StoreError as error:
                outcomes.append(_Outcome(job, None, error, []))
        tree.commit()
    except Exception as error:  # whatever it is, the callers hear of it, and the next batch starts clean
        why = f"the coordination store {tree.path} failed: {error}"
        try:
            tree.rollback()
        except sqlite3.Error as worse:
            why += f"; rolling back failed, too: {worse}"
        if len(jobs) > 1:
            return [outcome for job in jobs for outcome in _run(tree, [job])]
        return [_Outcome(job, None, StoreFailed(detail=why), []) for job in jobs]
    return outcomes
