"""Restarts long-running tasks after failures, and computes backoff pauses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pybroker.logs import event

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 30.0
SAID_AGAIN_S: Final = 60.0
"""Interval at which a continuing failure is logged."""


async def keep_up(work: Callable[[], Awaitable[object]], what: str) -> None:
    """Run work until it returns. An unexpected exception is logged with its traceback, and the work is restarted a
    second later."""
    while True:
        try:
            await work()
            return
        except Exception as problem:
            event(log, logging.ERROR, "task failed", task=what, reason=problem, exc_info=problem)
        await asyncio.sleep(AGAIN_S)


class Pauses:
    """The pauses between attempts at something that keeps failing: each is twice as long as the one before, from
    PAUSE_S_MIN to PAUSE_S_MAX. After twice PAUSE_S_MAX without a failure they start again at PAUSE_S_MIN."""

    def __init__(self) -> None:
        self._next_s = PAUSE_S_MIN
        self._failed_s = self._said_s = float("-inf")
        self._reason = ""

    def is_news(self, reason: object) -> bool:
        """Record a failure, after which the caller waits. True if it should be logged: it is the first in a minute, or
        its reason differs from the last one."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._failed_s > 2 * PAUSE_S_MAX:
            self._next_s = PAUSE_S_MIN
        self._failed_s = now_s
        if str(reason) == self._reason and now_s - self._said_s < SAID_AGAIN_S:
            return False
        self._reason, self._said_s = str(reason), now_s
        return True

    def take(self) -> float:
        """Return the length of this pause in seconds, for a caller that waits itself."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSE_S_MAX)
        return pause_s

    async def wait(self, changed: asyncio.Event) -> None:
        """Wait until the pause is over, or `changed` is set: then the next pause is the shortest."""
        try:
            async with asyncio.timeout(self.take()):
                await changed.wait()
            self._next_s = PAUSE_S_MIN
        except TimeoutError:
            pass
