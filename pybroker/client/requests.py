"""How a request is sent, who is told what becomes of it, and how long it is before another attempt."""

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from pybroker.errors import KafkaError

Done = Callable[[Any, KafkaError | None], object]
"""(answer, None) or (None, error); (None, None) for a request without an answer, once the system has it."""


def settles(future: Future[Any]) -> Done:
    """What gives a future the answer, or the error."""

    def done(answer: Any, error: KafkaError | None) -> None:
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    return done


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
