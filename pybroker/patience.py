"""Waits for others: asks again after errors that may pass, and lets a program show what a blocking call waits for."""

import contextlib
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar

from pybroker.errors import KafkaError

AGAIN_S: Final = 0.5
"""Seconds between two tries."""
T = TypeVar("T")
Waits = Callable[[str], contextlib.AbstractContextManager[object]]
"""A function that gets what a call waits for, as "for ..." or "until ...", and is left when the wait is over."""

waiting: ContextVar[Waits] = ContextVar("waiting", default=contextlib.nullcontext)
"""Called around each wait of the blocking clients. A program that shows them sets it for its own thread."""


def patiently(ask: Callable[[], T], timeout_s: float, *, again_s: float = AGAIN_S) -> T:
    """Return the answer of `ask`, which is called again after retriable errors until the timeout. Raises the KafkaError
    of the last try."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaError as problem:
            if not problem.retriable or time.monotonic() >= deadline_s:
                raise
        time.sleep(again_s)
