"""Calls that block, made on a thread beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")


def beside(executor: Executor, call: Callable[..., Result], *arguments: Any, **named: Any) -> "asyncio.Future[Result]":
    """Make a call on a thread of the executor; a future of its result, or of what it raises.

    RuntimeError where the call, or the program's code inside it, raises StopIteration, which an asyncio.Future does not
    take: its awaiter would wait for ever. Also for StopAsyncIteration and CancelledError, by which `async for` would
    end, and the awaiter be taken for cancelled."""
    return asyncio.get_running_loop().run_in_executor(executor, _raising, partial(call, *arguments, **named))


def _raising(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except (StopIteration, StopAsyncIteration, asyncio.CancelledError) as problem:
        raise RuntimeError(f"a call on a thread raised {problem!r}") from problem
