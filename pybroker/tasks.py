"""Tasks that are ended: cancelled, waited for, and let go of. Work that gives way to others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

SHARE = 200

T = TypeVar("T")


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


async def in_shares(items: Sequence[T], size: int = SHARE) -> AsyncIterator[Sequence[T]]:
    """Give items in shares, between which the event loop has its turn; few of them come at once."""
    for first in range(0, len(items), size):
        if first:
            await asyncio.sleep(0)
        yield items[first : first + size]
