"""A thread pool that can be resized while it works."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Executor):
    """A thread pool of `threads` threads. After a resize, the old threads finish the work submitted before."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._pools = [ThreadPoolExecutor(threads, name)]  # the last one takes new work

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._lock:
            return self._pools[-1].submit(fn, *args, **kwargs)

    def resize(self, threads: int) -> None:
        """Run new work on this many threads."""
        with self._lock:
            if threads == self.threads:
                return
            self.threads = threads
            self._pools[-1].shutdown(wait=False)
            self._pools.append(ThreadPoolExecutor(threads, self._name))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            pools = list(self._pools)
        for pool in pools:
            pool.shutdown(wait, cancel_futures=cancel_futures)
