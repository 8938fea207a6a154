"""A session whose operations are work on a tree of nodes (tree.py), done and answered elsewhere."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from .node_tree import NodeTree
from .store import (
    ANY_VERSION,
    ENDED,
    Answer,
    AnyFuture,
    Create,
    Delete,
    NodeCopy,
    Op,
    Session,
    SessionExpired,
    SessionState,
    Set,
    Stat,
    StoreError,
    Watch,
    WatchEvent,
    check_copies,
    check_multi,
    check_op,
    check_path,
)
from .tree import Tree
from .watches import CHILD, DATA, EXIST, Watches

T = TypeVar("T")

AnyTree = Tree | NodeTree
Work = Callable[[AnyTree, list[WatchEvent]], object]
Hear = Callable[..., None]


class StoreJob(NamedTuple):
    """Work on the store's tree, answered on the event loop. It must raise StoreError before it changes anything."""

    work: Work
    future: AnyFuture
    session: "TreeSession | None" = None
    watch: Hear | None = None
    """Sets the operation's watch, given its answer; of reads alone."""
    begun_s: float = 0.0
    """When it was submitted, by time.perf_counter."""


def answer(future: AnyFuture, result: object, error: Exception | None) -> None:
    """Answer a future, unless its caller was cancelled; the operation's effect stays."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class TreeSession(Session):
    """A session that makes each operation a piece of work on the tree."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._watches = Watches()

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
        return self._read(path, lambda tree, events: tree.get(path), watch, _data)

    def exists(self, path: str, *, watch: Watch | None = None) -> "asyncio.Future[Stat | None]":
        return self._read(path, lambda tree, events: tree.stat(path), watch, _exist_or_data)

    def children(self, path: str, *, watch: Watch | None = None) -> "asyncio.Future[tuple[list[str], Stat]]":
        return self._read(path, lambda tree, events: tree.children(path), watch, _child)

    def multi(self, ops: Sequence[Op]) -> "asyncio.Future[list[Answer]]":
        ops = list(ops)
        return self._submit(lambda tree, events: tree.multi(ops, self.id, events), check_multi, ops)

    def restore(self, copies: Sequence[NodeCopy]) -> "asyncio.Future[None]":
        """Create or overwrite nodes as another store has them, with their Stat, parents first; all of them or none.
        Later transactions have higher zxids. For a tree without other clients: watches of children do not fire.

        Raises NoNode if a parent is missing."""
        copies = list(copies)
        return self._submit(lambda tree, events: tree.restore(copies, events), check_copies, copies)

    def _write(self, op: Op) -> AnyFuture:
        return self._submit(lambda tree, events: tree.write(op, self.id, events), check_op, op)

    def _read(self, path: str, work: Work, watch: Watch | None, kind: Callable[[object], int]) -> AnyFuture:
        def add(answer: object) -> None:
            if watch is not None and self._may_watch:
                self._watches.add(kind(answer), path, watch)

        return self._submit(work, check_path, path, _unwatched if watch is None else add)

    @property
    def _may_watch(self) -> bool:
        """True if the answer to a read may set its watch now."""
        return self.state is SessionState.CONNECTED

    def _submit(self, work: Work, check: Callable[[T], object], what: T, watch: Hear | None = None) -> AnyFuture:
        """Do work after all that was submitted before, unless the check of `what` raises. `watch`: of a read.
        """
        job = StoreJob(work, self._loop.create_future(), self, watch, time.perf_counter())
        try:
            check(what)
            if self.state in ENDED:
                raise SessionExpired
        except StoreError as error:
            job.future.set_exception(error)
            return job.future
        self._queue(job)
        return job.future

    @abstractmethod
    def _queue(self, job: StoreJob) -> None:
        """Have a job done, and its future answered."""

    def answered(self, job: StoreJob, result: object, error: Exception | None) -> None:
        """Hand an operation its answer."""
        self.times.add(time.perf_counter() - job.begun_s)
        answer(job.future, result, error)


def _unwatched(answer: object) -> None:
    """Set no watch."""


def _data(answer: object) -> int:
    return DATA


def _child(answer: object) -> int:
    return CHILD


def _exist_or_data(stat: object) -> int:
    return EXIST if stat is None else DATA
