"""Tasks that never end by themselves, and tasks that are ended: cancelled, waited for, and let go of."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

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


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until each has ended, in whatever way.

    A task keeps the error that it was cancelled with, that error its frames, and these what they were at: a partition,
    a plane, and their descriptors. Where they lead back to whoever has the task, only the garbage collector would end
    that. So the error is taken away from the task."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # raises that error, which nobody has afterwards
