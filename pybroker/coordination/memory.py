"""The store in memory, on the event loop: no thread, no file, and the same answers in the same order each time.

What was submitted in one turn of the loop is done in the next, as one batch. It ends with its process; for tests and
simulations, whose clocks are their own.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from pybroker.clock import boot_ms, wall_ms

from .local import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, LocalStore, run
from .local_session import Job, answer
from .store import StoreClosed
from .tree import IN_MEMORY, Tree


class MemoryStore(LocalStore):
    """A store that nothing is left of."""

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
