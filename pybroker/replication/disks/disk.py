"""Threads for requests that need a disk: each log dir has its own, so that no request waits for another disk.

The work blocks neither the event loop nor, in core, the GIL. Requests for one log dir share its few threads: a disk
that hangs blocks only the requests that need it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

from pybroker import core
from pybroker.replication.disks.logdirs import LogDir

THREADS = 8
"""Threads per log dir: this many file calls may hang at once before a request waits for a thread."""

P = ParamSpec("P")
T = TypeVar("T")


class DiskThreads:
    """The threads of all log dirs; each begins when it is first needed."""

    def __init__(self) -> None:
        self._threads: dict[LogDir, ThreadPoolExecutor] = {}

    async def run(self, log_dir: LogDir, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run `work` on a thread of this log dir. Call this on the event loop's thread."""
        threads = self._threads.get(log_dir)
        if threads is None:
            threads = self._threads[log_dir] = ThreadPoolExecutor(THREADS, "disk")
        return await asyncio.get_running_loop().run_in_executor(threads, lambda: work(*args, **named))

    def close(self) -> None:
        """Wait for running work; no more can be submitted."""
        for threads in self._threads.values():
            threads.shutdown()


class DiskTimes(NamedTuple):
    """The durations of file calls: of flushes, of appends to logs, and of reads of records not in the page cache."""

    flushes: "core.Histogram"
    appends: "core.Histogram"
    cold_reads: "core.Histogram"
    cold_bytes: int
    """Bytes of the ranges that these reads covered."""
