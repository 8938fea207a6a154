"""A world that one seed decides: an event loop whose time jumps to its next timer, an executor without threads.

What else a coordinator takes from the world (the wall clock, the ids of members) it is given from here.
"""

from __future__ import annotations

import asyncio
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
    """An executor without threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:
            future.set_exception(problem)
        return future


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a story to its end, however long it says that it takes."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(story)


def world(draws: random.Random) -> Mapping[str, Any]:
    """What a coordinator is given beside its settings and its workers."""
    return {
        "wall_ms": lambda: EPOCH_MS + int(asyncio.get_running_loop().time() * 1000),
        "draw_id": lambda: uuid.UUID(int=draws.getrandbits(128), version=4),
    }
