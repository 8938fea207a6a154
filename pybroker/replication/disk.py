"""Threads for requests that need a disk: each log dir has its own, so that nobody waits for another one's disk.

What is done there holds neither the event loop nor, in core, the GIL. Requests of one log dir share its few threads: a
disk that hangs keeps those waiting that want something of it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from pybroker.replication.logdirs import LogDir

THREADS = 8
"""Of a log dir: so many of its file calls may hang at once before a request waits for a thread."""

P = ParamSpec("P")
T = TypeVar("T")


class DiskThreads:
    """The threads of all log dirs; each begins when it is first needed."""

    def __init__(self) -> None:
        self._threads: dict[LogDir, ThreadPoolExecutor] = {}

    async def run(self, log_dir: LogDir, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Do `work` on a thread of this log dir. On the event loop's thread."""
        threads = self._threads.get(log_dir)
        if threads is None:
            threads = self._threads[log_dir] = ThreadPoolExecutor(THREADS, "disk")
        return await asyncio.get_running_loop().run_in_executor(threads, lambda: work(*args, **named))

    def close(self) -> None:
        """Wait for what is under way; nothing comes after it."""
        for threads in self._threads.values():
            threads.shutdown()
