"""What a failed test shows: the line of the test that called the kit, and not how the kit came to its answer."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from pybroker.testing.life import BrokerFailed

Given = ParamSpec("Given")
Result = TypeVar("Result")


def hidden(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """A call of the kit: what it raises ends, in pytest's traceback, at the line of the test."""
    if inspect.iscoroutinefunction(call):

        async def awaited(*arguments: Given.args, **named: Given.kwargs) -> Any:
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
    """Whether a sentence tells it all. Anything else is a fault of the kit's own, and keeps all of its frames."""
    from pybroker.errors import KafkaError

    return isinstance(problem, KafkaError | BrokerFailed | TimeoutError | ValueError | TypeError | OverflowError)


def _why(problem: Exception) -> BaseException | None:
    """What a test is shown as the cause: a fault of the broker's own. All else is in the sentence."""
    cause = problem.__cause__ if isinstance(problem, BrokerFailed) else None
    return None if _told(cause) else cause
