"""Tracebacks of failed tests, which end at the line of the test and leave out the kit's own frames."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pybroker.testing.lifecycle import BrokerFailed

Given = ParamSpec("Given")
Result = TypeVar("Result")


def hidden(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap a call of the kit: pytest's traceback of what it raises ends at the line of the test."""
    if inspect.iscoroutinefunction(call):

        async def awaited(*arguments: Given.args, **named: Given.kwargs) -> object:
            __tracebackhide__ = True
            try:
                return await call(*arguments, **named)
            except Exception as problem:
                if not _told(problem):
                    raise
                raise problem.with_traceback(None) from _why(problem)

        return functools.wraps(call)(awaited)  # type: ignore[return-value]

    @functools.wraps(call)
    def called(*arguments: Given.args, **named: Given.kwargs) -> Result:
        __tracebackhide__ = True
        try:
            return call(*arguments, **named)
        except Exception as problem:
            if not _told(problem):
                raise
            raise problem.with_traceback(None) from _why(problem)

    return called


def _told(problem: BaseException | None) -> bool:
    """True if the exception's sentence says everything. Other exceptions are bugs of the kit, and keep all their
    frames."""
    from pybroker.errors import KafkaError

    return isinstance(problem, KafkaError | BrokerFailed | TimeoutError | ValueError | TypeError | OverflowError)


def _why(problem: Exception) -> BaseException | None:
    """The cause to show a test: only a bug of the broker's. All else is in the sentence."""
    cause = problem.__cause__ if isinstance(problem, BrokerFailed) else None
    return None if _told(cause) else cause
