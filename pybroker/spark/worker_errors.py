"""Errors of the source in Spark's Python processes: Spark shows a user the sentence first, without a traceback."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, ParamSpec, TypeVar

from pybroker.errors import KafkaError

Given = ParamSpec("Given")
Result = TypeVar("Result")
HIDDEN: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark reads this variable when it reports an exception of the process, which then ends."""
_WORKERS: Final = "PYTHON_WORKER_FACTORY_"
"""The prefix of variables that Spark sets for its Python processes."""


def sentence_only(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap a method that Spark calls: a KafkaError is reported without its traceback, other exceptions with it."""
    if inspect.isgeneratorfunction(call):

        @functools.wraps(call)
        def steps(*arguments: Given.args, **named: Given.kwargs) -> Any:
            with _reported():
                yield from call(*arguments, **named)

        return steps

    @functools.wraps(call)
    def called(*arguments: Given.args, **named: Given.kwargs) -> Result:
        with _reported():
            return call(*arguments, **named)

    return called


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except KafkaError:
        if any(name.startswith(_WORKERS) for name in os.environ):
            os.environ[HIDDEN] = "1"
        raise
