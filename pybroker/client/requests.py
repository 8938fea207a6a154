"""How a request is sent, who is told what becomes of it, and how long it is before another attempt."""

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.logs import unfailing

_log = unfailing(__name__)

Done = Callable[[Any, KafkaError | None], object]
"""(answer, None) or (None, error); (None, None) for a request without an answer, once the system has it."""


def tell(done: Done, answer: Any, error: KafkaError | None, what: str = "a request") -> None:
    """Call `done` with the outcome of a request, and raise none of its exceptions: other requests come after it.

    It is called again with an error if it cannot use the answer: else its caller would wait for ever."""
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
    """Bytes that go into a request where they are: the codec copies what it takes for ordinary bytes."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)

    def __len__(self) -> int:
        return self.data.nbytes

    def tobytes(self) -> bytes:
        return self.data.tobytes()


class How(NamedTuple):
    """How a request is sent, where it is not as most are."""

    timeout_s: float | None = None
    version_max: int | None = None
    """The last version that the message was filled for."""
    answered: bool = True
    """False for Produce with acks=0."""


PLAIN: Final = How()


class Pauses(NamedTuple):
    """Seconds between attempts: the first, and the longest; in between they double, each a fifth more or less."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 30)) * random.uniform(0.8, 1.2)
