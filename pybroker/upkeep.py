"""What a broker needs for as long as it lives: tasks that never end by themselves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pybroker.logs import event

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0


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
