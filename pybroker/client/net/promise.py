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
from typing import Any, TypeVar

from pybroker import fork_safety
from pybroker.core import log_callback
from pybroker.errors import KafkaError

Result = TypeVar("Result")


class Promise(Future[Result]):
    """A future that `settle` gives an answer or a KafkaError. Never call its `set_result` and `set_exception`."""

    def __init__(self, kind: str = "client") -> None:
        """`kind` names its callbacks in the log."""
        super().__init__()
        self._kind = kind
        self._process = os.getpid()
        self._settled = False
        self._settler: int | None = None
        """The thread that is settling it, on which no callback may raise."""

    def settle(self, answer: Result | None, error: KafkaError | None) -> None:
        """Set the answer or the error, and call the callbacks; raise nothing.

        A future that was cancelled, or has its outcome, stays as it is."""
        if self._settled:
            return
        self._settled = True
        if not self.set_running_or_notify_cancel():
            return
        self._settler = threading.get_ident()
        if error is None:
            result: Any = answer  # None, too, where that is a result
            self.set_result(result)
        else:
            self.set_exception(error)
        self._settler = None

    def result(self, timeout: float | None = None) -> Result:
        """The result, as of any future. KafkaError in a forked child, which has no thread to settle it."""
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception, as of any future; raises as `result`."""
        self._check_process()
        return super().exception(timeout)

    def _check_process(self) -> None:
        if not self._settled and os.getpid() != self._process:
            raise fork_safety.refusal(self._kind)

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call with this future once it is done: on the client's thread, or here if it is done already."""
        super().add_done_callback(partial(self._call_out, fn))

    @staticmethod
    def _call_out(call: Callable[[Future[Result]], object], future: "Promise[Result]") -> None:
        """Log a callback's exception; on the program's own thread raise what is no Exception."""
        try:
            call(future)
        except BaseException as problem:
            if future._settler != threading.get_ident() and not isinstance(problem, Exception):
                raise
            log_callback(future._kind)
