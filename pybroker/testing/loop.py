"""An event loop on a thread of its own, which other threads have things done on."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from pybroker.tasks import cancel_and_wait
from pybroker.testing.life import BrokerFailed

T = TypeVar("T")
DO_S_MAX: Final = 60.0


class LoopThread:
    """Its thread is a daemon: it ends with close(), or with the interpreter."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self.loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Not in a forked child, which has none of its parent's threads."""
        return self._process == os.getpid() and not self.loop.is_closed()

    def do(self, work: Awaitable[T], timeout_s: float = DO_S_MAX) -> T:
        """Await something there; what came of it. Raises BrokerFailed."""
        self._check()

        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(timeout_s)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Call something there, which may take its time: nothing else is done meanwhile. Raises BrokerFailed."""
        self._check()

        async def do() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(do(), self.loop)

    def _check(self) -> None:
        if not self.runs:
            raise BrokerFailed("the cluster is closed, or was made before a fork by another process")

    def call(self, call: Callable[[], T]) -> T:
        """Call something there; what it returned."""
        return self.begin(call).result(DO_S_MAX)

    def close(self) -> None:
        """End what is under way, and the thread; again it does nothing."""
        if not self.runs:
            return
        try:
            self.do(_end_tasks())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(DO_S_MAX)
            self.loop.close()


async def _end_tasks() -> None:
    """While the loop still runs, so that each hears of it."""
    await cancel_and_wait(*asyncio.all_tasks() - {asyncio.current_task()})
    await asyncio.sleep(0)  # transports that were closed meanwhile tell so in the loop's next turn
