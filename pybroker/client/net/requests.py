"""Options of requests, callbacks for their outcomes, and pauses between attempts."""

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.core import SealedBatch
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.protocol.message import Bytes, R

_log = unfailing(__name__)

Answered = Callable[[R | None, KafkaError | None], object]
"""(answer, None) or (None, error); (None, None) for a request without an answer, once the system has it."""
Done = Answered[Any]
"""The same of any request."""


def complete(done: Done, answer: object, error: KafkaError | None, what: str = "a request") -> None:
    """Call `done` with the outcome of a request, and log its exceptions: other requests come after it.

    If it raises, it is called again with an error: else its caller would wait for ever."""
    try:
        done(answer, error)
        return
    except BaseException as problem:
        _log.exception("an answer to %s could not be used", what)
        if error is not None:
            return
        words = f"the client fails at an answer to {what}: {type(problem).__name__}: {problem}"
    try:
        done(None, KafkaError(errors.UNKNOWN_SERVER_ERROR, words))
    except BaseException:
        _log.exception("the failure of %s could not be used", what)


class Parcel:
    """Bytes that are sent without a copy, unlike bytes and memoryviews in a request."""

    __slots__ = ("data",)

    def __init__(self, data: Bytes | SealedBatch) -> None:
        self.data = memoryview(data)

    def __len__(self) -> int:
        return self.data.nbytes

    def tobytes(self) -> bytes:
        return self.data.tobytes()


class RequestOptions(NamedTuple):
    """Options of one request; the defaults are for most."""

    timeout_s: float | None = None
    version_max: int | None = None
    """The last version that the message was filled for."""
    answered: bool = True
    """False for Produce with acks=0."""


PLAIN: Final = RequestOptions()


class RetryBackoff(NamedTuple):
    """Seconds between attempts, doubling from the first to the longest, each randomized by a fifth."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 30)) * random.uniform(0.8, 1.2)
