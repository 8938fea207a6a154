"""A store in this process: its sessions, and how work on the tree becomes events and answers.

Watches live on the event loop and never see an uncommitted change: the outcomes are processed there in order. Each sets
its watch, or fires the watches of its changes, before its own future is answered. Subclasses choose the thread that
does the work.
"""

import asyncio
import sqlite3
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from .local_session import LocalSession
from .store import AnyFuture, Store, StoreError, StoreFailed, WatchEvent
from .tree import Tree
from .tree_session import AnyTree, StoreJob, answer

TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 4_000, 40_000
"""The range that ZooKeeper grants with its default tick of 2 s: 2 to 20 ticks."""


class Outcome(NamedTuple):
    job: StoreJob
    result: object
    error: Exception | None
    events: list[WatchEvent]


class LocalStore(Store):
    """A store for the sessions of this process."""

    session_type: type[LocalSession] = LocalSession

    def __init__(self, timeouts_ms: tuple[int, int], clock_ms: Callable[[], int]) -> None:
        self.clock_ms = clock_ms
        self._timeouts_ms = timeouts_ms
        self._sessions: dict[int, LocalSession] = {}

    @abstractmethod
    def submit(self, job: StoreJob) -> AnyFuture:
        """Submit work; jobs run in the order of the calls. Return its future."""

    async def session(self, timeout_ms: int) -> LocalSession:
        """Return a new session; its timeout is clamped to what the store grants."""
        shortest, longest = self._timeouts_ms
        loop = asyncio.get_running_loop()
        number: int = await self.submit(StoreJob(_new_session, loop.create_future()))
        session = self.session_type(self, loop, number, max(shortest, min(timeout_ms, longest)))
        self._sessions[number] = session
        return session

    def expire_overdue(self) -> None:
        """End the suspended sessions whose timeout is over. A timer calls this; a test with its own clock must."""
        for session in [s for s in self._sessions.values() if s.overdue(self.clock_ms())]:
            session.expire()

    def forget(self, session: LocalSession) -> None:
        self._sessions.pop(session.id, None)

    def deliver(self, outcomes: list[Outcome]) -> None:
        """Fire the watches and answer the futures; on the event loop."""
        for job, result, error, events in outcomes:
            if job.watch is not None and error is None:
                job.watch(result)
            for event in events:
                for session in list(self._sessions.values()):
                    session.hear(event)
            if job.session is None:
                answer(job.future, result, error)
            else:
                job.session.answered(job, result, error)


def _new_session(tree: AnyTree, events: list[WatchEvent]) -> int:
    assert isinstance(tree, Tree), "local stores keep their tree in SQLite"
    return tree.new_session()


def run(tree: Tree, jobs: list[StoreJob], made_room: Callable[[], bool] = lambda: False) -> list[Outcome]:
    """Run a batch as one transaction; if that fails, run each job alone, as some may still fit on a full disk.

    `made_room` is called when the disk is full; it returns True if the batch may fit now."""
    outcomes = []
    try:
        for job in jobs:
            events: list[WatchEvent] = []
            try:
                outcomes.append(Outcome(job, job.work(tree, events), None, events))
            except StoreError as error:
                outcomes.append(Outcome(job, None, error, []))
        tree.commit()
    except Exception as error:  # any failure goes to the callers, and the next batch starts clean
        why = f"the coordination store {tree.path} failed: {error}"
        try:
            tree.rollback()
        except sqlite3.Error as worse:
            why += f"; rolling back failed, too: {worse}"
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL and made_room():
            return run(tree, jobs)
        if len(jobs) > 1:
            return [outcome for job in jobs for outcome in run(tree, [job])]
        return [Outcome(job, None, StoreFailed(detail=why), []) for job in jobs]
    return outcomes
