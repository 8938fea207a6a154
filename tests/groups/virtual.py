"""A world that one seed decides: an event loop whose time jumps to its next timer, an executor without threads.

What else a coordinator takes from the world (the wall clock, the ids of members) it is given from here.
"""

from __future__ import annotations

import asyncio
import functools
import random
import selectors
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from typing import Any

EPOCH_MS = 1_700_000_000_000


class _Selector(selectors.SelectSelector):
    """Where nothing is to be done before the next timer, its time is come."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everybody waits, and for no timer"
            self.now += max(timeout, 0)
        return found


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class Inline(Executor):
    """An executor without threads; while it is `held`, work is kept until `release`."""

    def __init__(self) -> None:
        self.held = False
        self._kept: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except Exception as problem:
                    future.set_exception(problem)

        if self.held:
            self._kept.append(work)
        else:
            work()
        return future

    def release(self) -> None:
        """Do the oldest work that is kept."""
        self._kept.pop(0)()


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a story to its end, however long it says that it takes."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(story)


def story(told: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a story."""

    @functools.wraps(told)
    def test(*args: Any, **kwargs: Any) -> None:
        run(told(*args, **kwargs))

    return test


async def settle() -> None:
    """Let everything happen that waits for no timer."""
    await asyncio.sleep(0.001)


def wall_ms() -> int:
    """The wall clock, which was set when the loop began."""
    return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


def world(draws: random.Random) -> Mapping[str, Any]:
    """What a coordinator is given beside its settings and its workers."""
    return {
        "wall_ms": wall_ms,
        "draw_id": lambda: uuid.UUID(int=draws.getrandbits(128), version=4),
    }
