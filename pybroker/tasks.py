"""Helpers for asyncio: cancel tasks, wait for one of two events, and split long work so that the loop keeps running."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Literal, TypeVar

SHARE = 200
WORK_S = 0.002
"""Seconds of work after which the event loop runs, for work whose parts take very different times."""

T = TypeVar("T")


async def cancel_and_wait(*tasks: asyncio.Task[object]) -> None:
    """Cancel tasks and wait until each has ended, with or without an error.

    A cancelled task refers to its CancelledError, the error to its frames, and these to partitions, planes and their
    descriptors. If these refer back to the owner of the task, only the garbage collector would free them. So the error
    is removed from the task."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # raises the error and drops the task's reference to it


async def wait_for_either(event: asyncio.Event, ended: asyncio.Future[T]) -> None:
    """Wait until an event is set or a future is done; the future's result is left to the caller."""
    waiting = asyncio.get_running_loop().create_task(event.wait())
    either: list[asyncio.Future[Literal[True]] | asyncio.Future[T]] = [waiting, ended]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def in_shares(items: Iterable[T], size: int = SHARE) -> AsyncIterator[list[T]]:
    """Yield items in lists of at most `size`, letting the event loop run in between. Items are taken from the iterable
    one list at a time."""
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
