"""A pool of threads whose number may change while it works."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any


class Workers(Executor):
    """What was submitted before a change is finished by the threads that there were; `threads` is their number now."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._pools = [ThreadPoolExecutor(threads, name)]  # the last one takes what comes

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            return self._pools[-1].submit(fn, *args, **kwargs)

    def resize(self, threads: int) -> None:
        """Work with so many threads from now on."""
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
