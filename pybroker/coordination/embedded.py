"""The embedded store: the tree in a SQLite file, on a thread of its own, for any number of sessions of this process.

    caller --job--> queue --batch--> thread: run all, one commit --outcomes--> event loop: watches fire, futures answer

All jobs that wait in the queue become one batch and one fsync.

A session lives as long as this process unless it is suspended, like a client that froze or lost its network: then it
sends and receives nothing, and the store ends it after its timeout.
"""

import asyncio
import queue
import threading
from collections.abc import Callable

from pybroker.clock import boot_ms, wall_ms

from .local import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, LocalStore, run
from .store import AnyFuture, StoreClosed
from .tree import Tree
from .tree_session import StoreJob, answer

BATCH_JOBS_MAX = 1024


class EmbeddedStore(LocalStore):
    """A store in one file, which only one process at a time can open."""

    def __init__(
        self,
        path: str,
        *,
        timeouts_ms: tuple[int, int] = (TIMEOUT_MS_MIN, TIMEOUT_MS_MAX),
        clock_ms: Callable[[], int] = boot_ms,
        wall_ms: Callable[[], int] = wall_ms,
        made_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`timeouts_ms`: the shortest and longest session timeouts granted, measured by `clock_ms`. `made_room`: called
        on the store's thread when the disk is full; returns True if there may be room now."""
        super().__init__(timeouts_ms, clock_ms)
        self.path = path
        self._made_room = made_room
        self._wall_ms = wall_ms
        self._jobs: queue.SimpleQueue[StoreJob | asyncio.Future[None]] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Open or create the file. Raises StoreFailed if it is damaged, of another program, or in use."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name="coordination", daemon=True)
        self._thread.start()
        try:
            await opened
        except BaseException:
            self._thread = None
            raise

    async def close(self) -> None:
        """Finish submitted work and close the file. Ephemeral nodes that remain are deleted by the next open."""
        if self._thread is None or self._loop is None:
            return
        thread, self._thread = self._thread, None
        closed: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put(closed)
        await closed
        thread.join()

    def submit(self, job: StoreJob) -> AnyFuture:
        """Queue work for the thread. Return its future."""
        if self._thread is None:
            answer(job.future, None, StoreClosed())
        else:
            self._jobs.put(job)
        return job.future

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
            while isinstance(item, StoreJob):
                jobs.append(item)
                if len(jobs) == BATCH_JOBS_MAX or self._jobs.empty():
                    break
                item = self._jobs.get()
            else:
                closed = item
            if jobs:
                self._call(self.deliver, run(tree, jobs, self._made_room))
        try:
            tree.close()
        finally:
            self._call(answer, closed, None, None)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: no caller waits for the result
            assert self._loop.is_closed()
