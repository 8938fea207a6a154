"""Ends tasks: cancels, awaits and forgets them. Runs long work in shares, so that the event loop has its turn."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Any, TypeVar

SHARE = 200
WORK_S = 0.002
"""Seconds of work of a kind whose parts take very different times, between which the event loop has its turn."""

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


async def in_shares(items: Iterable[T], size: int = SHARE) -> AsyncIterator[list[T]]:
    """Yield items in shares of at most `size`, between which the event loop has its turn. Each is taken from `items`
    when its share is due."""
    remaining = iter(items)
    while share := list(islice(remaining, size)):
        yield share
        if len(share) < size:
            return
        await asyncio.sleep(0)


async def by_time(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items one by one, letting the event loop run whenever WORK_S have passed."""
    until_s = time.perf_counter() + WORK_S
    for item in items:
        yield item
        if time.perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = time.perf_counter() + WORK_S
