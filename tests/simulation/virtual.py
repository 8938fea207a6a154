"""An event loop with virtual time: it jumps to the next timer, and work for threads runs in the caller.

All work belongs to the process that began it, by its context. A frozen process runs nothing until it continues, and a
killed one never again, not even its cleanup.
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
    """No handle is ready and no timer runs, so all waiting tasks would wait forever."""


class Process:
    """Work that is frozen and killed as one."""

    def __init__(self) -> None:
        self.frozen = self.dead = False
        self.held: deque[asyncio.Handle] = deque()
        """The handles to run once it continues, in order."""
        self.context: Context = copy_context()
        self.context.run(_OWNER.set, self)


_OWNER: ContextVar[Process | None] = ContextVar("owner", default=None)


class _Selector(selectors.SelectSelector):
    """A selector without events from outside."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class _Handle(asyncio.Handle):
    """asyncio's handle, created in a fifth of the time, as it does not check the debug mode."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context) -> None:
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled, self._repr, self._source_traceback = False, None, None


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which a seed gives one order of events. `after_turn` gets the processes that ran in each turn.

    An exception in a callback ends the schedule, instead of a line in a log.
    """

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector())
        self._clock_resolution = 1e-9
        self.outside = copy_context()
        """The context of all that belongs to no process: the network, the store, the clients."""
        self.after_turn: Callable[[set[Any]], None] = lambda ran: None
        self.slowness: Callable[[], float] = lambda: 0.0
        """The seconds that each piece of work on a thread takes."""
        self.steps = 0
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def ms(self) -> int:
        """The current time in whole milliseconds."""
        return round(self.now * 1000)

    def later(self, delay: float, what: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call this after a delay, outside all processes."""
        return self.call_later(delay, what, *args, context=self.outside)

    def thaw(self, process: Process) -> None:
        """Let a frozen process continue where it was."""
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
        """Do nothing, as there is no thread to wake."""

    def _check_closed(self) -> None:
        """Do nothing: killed work that Python cleans up later must not fail."""

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
        """Leave a cancelled timer in place until it is due."""

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
