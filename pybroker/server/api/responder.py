"""The interface of responders, which execute frames of connections and answer at once or later."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Protocol

from pybroker.decisions.caller import Caller
from pybroker.protocol.message import Bytes, Sendable

SIZE_BYTES = 4
"""Bytes of the size field before each frame."""


Part = Bytes | Sendable
Answer = list[Part] | None
"""The parts of an encoded response without its size; None if the request gets no response (acks=0)."""


HEARD_MS = 50
"""Delay between an error response and the close: kafka-python drops a response that arrives together with the FIN."""


class Last(list[Part]):
    """A response after which the connection is closed, HEARD_MS later."""


@dataclass(slots=True)
class Waiting:
    """A request that is answered later. `abandon`: cancel it when the client disconnects; the value may change while
    the request waits."""

    answer: Coroutine[object, None, Answer]
    abandon: bool


class Responder(Protocol):
    """Executes requests."""

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        """Execute a frame. Raises Disconnect if the connection must be closed without a response."""
