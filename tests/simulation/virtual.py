"""An event loop whose time is its own: it jumps to the next timer, and threads' work is done where it is asked for."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class Deadlock(Exception):
    """Nothing is ready and no timer runs: whoever waits would wait for ever."""


class _Selector(selectors.SelectSelector):
    """Waiting for descriptors is time that passes."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        self.now += max(timeout, 0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One seed, one order of events: nothing here comes from outside."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual.now

    def ms(self) -> int:
        """This moment in whole milliseconds."""
        return round(self._virtual.now * 1000)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as problem:
            done.set_exception(problem)
        return done
