"""An event loop on a thread of its own, on which other threads run coroutines and calls."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from pybroker.tasks import cancel_and_wait
from pybroker.testing.lifecycle import BrokerFailed

T = TypeVar("T")
DO_S_MAX: Final = 60.0


class LoopThread:
    """A loop on a daemon thread: it ends with close(), or with the interpreter."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self.loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """True unless the loop is closed, or this is a forked child, which has none of its parent's threads."""
        return self._process == os.getpid() and not self.loop.is_closed()

    def do(self, work: Awaitable[T], timeout_s: float = DO_S_MAX) -> T:
        """Await something on the loop; return the result. Raises BrokerFailed."""
        self._check()

        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(timeout_s)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Call something on the loop, which is blocked until the call returns. Raises BrokerFailed."""
        self._check()

        async def do() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(do(), self.loop)

    def _check(self) -> None:
        if not self.runs:
            raise BrokerFailed("the cluster is closed, or was made before a fork by another process")

    def call(self, call: Callable[[], T]) -> T:
        """Call something on the loop; return the result."""
        return self.begin(call).result(DO_S_MAX)

    def close(self) -> None:
        """Cancel what is under way and end the thread; calling it again does nothing."""
        if not self.runs:
            return
        try:
            self.do(_end_tasks())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(DO_S_MAX)
            self.loop.close()


async def _end_tasks() -> None:
    """Cancel all tasks while the loop still runs, so that each handles its cancellation."""
    await cancel_and_wait(*asyncio.all_tasks() - {asyncio.current_task()})
    await asyncio.sleep(0)  # closed transports call connection_lost in the loop's next turn
