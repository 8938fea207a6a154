"""Asks again after errors that may pass, as while a broker restarts or leaders are elected."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from pybroker.errors import KafkaError

AGAIN_S: Final = 0.5
"""Seconds between two tries."""
T = TypeVar("T")


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
