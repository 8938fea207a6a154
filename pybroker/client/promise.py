"""The future that the client gives to the program, and that the client's thread settles.

    pending --cancel(), by the program--> cancelled: the outcome is dropped
       '------settle(), by the client---> settled: its callbacks are called

A callback is the program's code and may raise anything, SystemExit and CancelledError too; no request of the client
depends on it.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from pybroker import forks
from pybroker.core import log_callback
from pybroker.errors import KafkaError

Result = TypeVar("Result")


class Promise(Future[Result]):
    """A future that `settle` gives an answer or a KafkaError. Never call its `set_result` and `set_exception`."""

    def __init__(self, kind: str = "client") -> None:
        """`kind` is what the log calls its callbacks."""
        super().__init__()
        self._kind = kind
        self._process = os.getpid()
        self._settled = False
        self._settler: int | None = None
        """The thread that settles it now, on which no callback may raise."""

    def settle(self, answer: Result, error: KafkaError | None) -> None:
        """Give it the answer, or the error, and make its callbacks; raise nothing.

        A future that was cancelled, or has its outcome, stays as it is."""
        if self._settled:
            return
        self._settled = True
        if not self.set_running_or_notify_cancel():
            return
        self._settler = threading.get_ident()
        if error is None:
            self.set_result(answer)
        else:
            self.set_exception(error)
        self._settler = None

    def result(self, timeout: float | None = None) -> Result:
        """Return as any future does. Raises KafkaError in a forked child, which has no thread that would settle it."""
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return as any future does; raises as `result`."""
        self._check_process()
        return super().exception(timeout)

    def _check_process(self) -> None:
        if not self._settled and os.getpid() != self._process:
            raise forks.refusal(self._kind)

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call with this future once it is done: on the client's thread, or here if it is done already."""
        super().add_done_callback(partial(self._call_out, fn))

    @staticmethod
    def _call_out(call: Callable[[Future[Result]], object], future: "Promise[Result]") -> None:
        """Log what the callback raises; raise what is no Exception where the thread is the program's own."""
        try:
            call(future)
        except BaseException as problem:
            if future._settler != threading.get_ident() and not isinstance(problem, Exception):
                raise
            log_callback(future._kind)
