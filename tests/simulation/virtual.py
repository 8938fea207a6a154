"""An event loop whose time is its own: it jumps to the next timer, and threads' work is done where it is asked for.

Whatever runs belongs to the process that began it, by its context: a frozen process runs nothing until it goes on, and
one that was killed nothing any more, not even what would clean up behind it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Deadlock(Exception):
    """Nothing is ready and no timer runs: whoever waits would wait for ever."""


class Process:
    """What is frozen and killed as one."""

    def __init__(self) -> None:
        self.frozen = self.dead = False
        self.held: deque[asyncio.Handle] = deque()
        """What it runs once it goes on, in order."""
        self.context: Context = copy_context()
        self.context.run(_OWNER.set, self)


_OWNER: ContextVar[Process | None] = ContextVar("owner", default=None)


class _Selector(selectors.SelectSelector):
    """Nothing comes from outside."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class _Handle(asyncio.Handle):
    """asyncio's own, made in a fifth of the time: it asks nobody whether it is debugged."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context) -> None:
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled, self._repr, self._source_traceback = False, None, None


class VirtualLoop(asyncio.SelectorEventLoop):
    """One seed, one order of events. `after_turn` is called with the processes that ran in each turn.

    What a callback raises ends the schedule, in place of a line in a log.
    """

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector())
        self._clock_resolution = 1e-9
        self.outside = copy_context()
        """The context of what belongs to no process: the network, the store, the clients."""
        self.after_turn: Callable[[set[Any]], None] = lambda ran: None
        self.slowness: Callable[[], float] = lambda: 0.0
        """How long each piece of work on a thread takes."""
        self.steps = 0
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def ms(self) -> int:
        """This moment in whole milliseconds."""
        return round(self.now * 1000)

    def later(self, delay: float, what: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Do it after a while, as nobody's."""
        return self.call_later(delay, what, *args, context=self.outside)

    def thaw(self, process: Process) -> None:
        """A frozen process goes on where it was."""
        process.frozen = False
        self._ready.extend(process.held)
        process.held.clear()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()

        def work() -> None:
            if done.done():
                return
            try:
                done.set_result(func(*args))
            except Exception as problem:
                done.set_exception(problem)

        delay = self.slowness()
        if delay:
            self.call_later(delay, work)
        else:
            work()
        return done

    def _write_to_self(self) -> None:
        """No thread is to be woken."""

    def _check_closed(self) -> None:
        """What was killed, or outlives its world, cleans up when Python forgets it: nothing comes of that."""

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays where it is until its time has come."""

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)
        ran: set[Process] = set()
        self.steps += len(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            owner = context.get(_OWNER)
            if owner is not None:
                if owner.dead:
                    continue
                if owner.frozen:
                    owner.held.append(handle)
                    continue
                ran.add(owner)
            context.run(handle._callback, *handle._args)
        self.after_turn(ran)
