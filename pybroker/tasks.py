"""Tasks that are ended, cancelled and waited for, and those that nobody waits for any more."""

import asyncio
import contextlib
import logging
from typing import Any

from pybroker.logs import event

log = logging.getLogger(__name__)


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


def tell_late(task: asyncio.Task[Any]) -> None:
    """A callback of a task: what nobody waits for any more is told in the log, if it failed."""
    if not task.cancelled() and (problem := task.exception()) is not None:
        event(log, logging.WARNING, "request failed after it timed out", reason=problem)
