"""A world that one seed decides: an event loop whose time jumps to its next timer, and an executor without threads.

A coordinator's other inputs (the wall clock, random member ids) come from here too.
"""

from __future__ import annotations

import asyncio
import functools
import random
import selectors
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

EPOCH_MS = 1_700_000_000_000
T = TypeVar("T")


TURN_S = 1e-9
"""The duration of a loop turn, so that a wait of almost no time ends."""


class Clock(selectors.SelectSelector):
    """A selector whose clock jumps to the next timer if no event is ready."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "every task waits, and none for a timer"
            self.now += max(timeout, TURN_S)
        return found


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


class Inline(Executor):
    """An executor without threads; while `held` it keeps work until `release`."""

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
        """Run the oldest kept work."""
        self._kept.pop(0)()


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run a story to its end, however much virtual time it takes, and return its result."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(story)


def story(told: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a story."""

    @functools.wraps(told)
    def test(*args: Any, **kwargs: Any) -> None:
        run(told(*args, **kwargs))

    return test


async def settle() -> None:
    """Let everything happen that waits for no timer."""
    await asyncio.sleep(0.001)


def stand_still(seconds: float) -> None:
    """Let time pass while the loop does nothing, as in a paused process."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.clock.now += seconds


def loop_ms() -> int:
    """The running loop's clock in ms, virtual or real: for code that counts a session's time without timers."""
    return int(asyncio.get_running_loop().time() * 1000)


def wall_ms() -> int:
    """The wall clock in ms, which was set when the loop began."""
    return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


def world(draws: random.Random) -> Mapping[str, Any]:
    """The arguments of a coordinator besides its settings and its workers."""
    return {
        "wall_ms": wall_ms,
        "draw_id": lambda: uuid.UUID(int=draws.getrandbits(128), version=4),
    }
