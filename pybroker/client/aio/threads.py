"""Blocking calls made on a thread, for the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def on_thread(
    executor: Executor, call: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs
) -> "asyncio.Future[Result]":
    """Make a call on a thread of the executor; a future of its result, or of what it raises.

    RuntimeError if the call, or the program's code inside it, raises StopIteration, which an asyncio.Future does not
    take: its awaiter would wait for ever. Also for StopAsyncIteration and CancelledError, by which `async for` would
    end, and the awaiter be taken for cancelled."""
    return asyncio.get_running_loop().run_in_executor(executor, raising, partial(call, *arguments, **named))


def raising(call: Callable[[], Result]) -> Result:
    """The result of a call, whose exceptions are those that an asyncio.Future takes."""
    try:
        return call()
    except (StopIteration, StopAsyncIteration, asyncio.CancelledError) as problem:
        raise RuntimeError(f"a call on a thread raised {problem!r}") from problem


class CountedCalls:
    """Calls on the one thread of an executor, and whether any of them has not ended: a call whose awaiter was cancelled
    may go on. Made and looked at on the event loop's thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.going_on: set[object] = set()

    def make(
        self, call: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs
    ) -> "asyncio.Future[Result]":
        """`on_thread`, counted until the thread is done with the call, or has dropped it."""
        made = self._executor.submit(raising, partial(call, *arguments, **named))
        self.going_on.add(made)
        made.add_done_callback(self.going_on.discard)
        return asyncio.wrap_future(made)
