"""The memory of requests of all connections of a broker, from their receipt until they are answered.

When the pool is full, connections that want to read more wait in line. If then no complete request is left whose end
would free memory, one waiting connection may pass the limit (the holder), so that a pool full of half-received frames
does not block. A holder that does not complete its frame in time is closed by the listener.
"""

from collections import OrderedDict
from typing import Protocol


class Reader(Protocol):
    """A connection whose reading is paused until there is room."""

    def room(self) -> None:
        """Resume reading."""


class Pool:
    """Bytes held by requests, their limit, and the waiting readers; `now` is in seconds of any one clock."""

    __slots__ = ("_held", "_holder", "_holder_since", "_limit", "_waiting", "_whole")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._whole = 0  # bytes of complete requests, which are freed without further reading
        self._waiting: OrderedDict[Reader, None] = OrderedDict()
        self._holder: Reader | None = None
        self._holder_since = 0.0

    @property
    def held_bytes(self) -> int:
        return self._held

    def short(self, reader: Reader) -> bool:
        """True if `reader` must wait before it receives more."""
        return self._held >= self._limit and reader is not self._holder

    def take(self, count: int) -> None:
        """Count received bytes of a frame that is still incomplete."""
        self._held += count

    def complete(self, reader: Reader, count: int) -> None:
        """Count a frame of `count` bytes, all taken before, as complete; it will be executed."""
        self._whole += count
        if reader is self._holder:
            self._holder = None

    def give(self, count: int, whole: int, now: float) -> None:
        """Free bytes, `whole` of them from complete requests, and wake waiting readers if there is room."""
        self._held -= count
        self._whole -= whole
        if self._waiting:
            self._settle(now)

    def wait(self, reader: Reader, now: float) -> None:
        """Put `reader` at the end of the line; its room() is called when it may read."""
        self._waiting[reader] = None
        self._settle(now)

    def leave(self, reader: Reader) -> None:
        """Forget a closed connection, whose bytes must have been freed."""
        self._waiting.pop(reader, None)
        if reader is self._holder:
            self._holder = None

    def _settle(self, now: float) -> None:
        """Let readers continue: all while there is room, else one if nothing else can free memory."""
        while self._waiting and self._held < self._limit:
            reader, _ = self._waiting.popitem(last=False)
            reader.room()
        if self._waiting and self._whole == 0 and self._holder is None:
            self._holder, _ = self._waiting.popitem(last=False)
            self._holder_since = now
            self._holder.room()

    def overdue(self, now: float, patience_seconds: float) -> Reader | None:
        """The holder, if it has delayed the others for too long."""
        return self._holder if self._holder and now - self._holder_since > patience_seconds else None
