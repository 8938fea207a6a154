"""What a broker needs for as long as it lives: tasks that never end by themselves."""

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
"""How often a failure that goes on is logged."""


async def keep_up(work: Callable[[], Awaitable[object]], what: str) -> None:
    """Run what a broker needs for as long as it lives. Where an exception ends it that it does not know, which nobody
    would see, it is logged with its traceback, and the work begins again a second later."""
    while True:
        try:
            await work()
            return
        except Exception as problem:
            event(log, logging.ERROR, "task failed", task=what, reason=problem, exc_info=problem)
        await asyncio.sleep(AGAIN_S)


class Pauses:
    """The pauses between attempts at something that keeps failing: each is twice as long as the one before, from
    PAUSE_S_MIN to PAUSE_S_MAX. After twice PAUSE_S_MAX without a failure they begin anew."""

    def __init__(self) -> None:
        self._next_s = PAUSE_S_MIN
        self._failed_s = self._said_s = float("-inf")
        self._reason = ""

    def is_news(self, reason: object) -> bool:
        """Note a failure, after which the caller waits. True if it should be logged: it is the first in a minute, or
        has another reason than the last one."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._failed_s > 2 * PAUSE_S_MAX:
            self._next_s = PAUSE_S_MIN
        self._failed_s = now_s
        if str(reason) == self._reason and now_s - self._said_s < SAID_AGAIN_S:
            return False
        self._reason, self._said_s = str(reason), now_s
        return True

    def take(self) -> float:
        """The length of this pause, for a caller that waits by itself."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSE_S_MAX)
        return pause_s

    async def wait(self, changed: asyncio.Event) -> None:
        """Return when the pause is over, or at once if something has changed: then the next pause is the shortest."""
        try:
            async with asyncio.timeout(self.take()):
                await changed.wait()
            self._next_s = PAUSE_S_MIN
        except TimeoutError:
            pass
