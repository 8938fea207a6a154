"""Tasks that are ended: cancelled, waited for, and let go of."""

import asyncio
import contextlib
from typing import Any


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
