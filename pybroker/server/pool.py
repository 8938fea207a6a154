"""The memory that requests may hold, over all connections of a broker: received and not yet answered.

When the pool is full, connections that want to read more wait in line. If then no whole request is left that could
finish and give its bytes back, one waiter at a time is let through past the limit (the holder), so that a pool full of
half-received frames does not stand still; a holder that does not complete its frame in time is closed by the listener.
"""

from collections import OrderedDict
from typing import Protocol


class Reader(Protocol):
    """What waits for room: a connection whose reading is paused."""

    def room(self) -> None:
        """Read again."""


class Pool:
    """Bytes held by requests, their limit, and those who wait for room; `now` is in seconds, of any one clock."""

    __slots__ = ("_held", "_holder", "_holder_since", "_limit", "_waiting", "_whole")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._whole = 0  # of these, bytes of complete requests: they will be given back without any more reading
        self._waiting: OrderedDict[Reader, None] = OrderedDict()
        self._holder: Reader | None = None
        self._holder_since = 0.0

    @property
    def held_bytes(self) -> int:
        return self._held

    def short(self, reader: Reader) -> bool:
        """Whether `reader` must wait before it receives more."""
        return self._held >= self._limit and reader is not self._holder

    def take(self, count: int) -> None:
        """Bytes of a frame that is still incomplete were received."""
        self._held += count

    def complete(self, reader: Reader, count: int) -> None:
        """A frame of `count` bytes, all taken before, is whole and will be executed."""
        self._whole += count
        if reader is self._holder:
            self._holder = None

    def give(self, count: int, whole: int, now: float) -> None:
        """Bytes are free again; `whole` of them were complete requests. Wakes waiters if there is room for them."""
        self._held -= count
        self._whole -= whole
        if self._waiting:
            self._settle(now)

    def wait(self, reader: Reader, now: float) -> None:
        """Put `reader` at the end of the line; its room() is called when it may read."""
        self._waiting[reader] = None
        self._settle(now)

    def leave(self, reader: Reader) -> None:
        """Forget a connection that is closed; its bytes must have been given back."""
        self._waiting.pop(reader, None)
        if reader is self._holder:
            self._holder = None

    def _settle(self, now: float) -> None:
        """Let waiters read: all while there is room, else one if nothing else can free memory."""
        while self._waiting and self._held < self._limit:
            reader, _ = self._waiting.popitem(last=False)
            reader.room()
        if self._waiting and self._whole == 0 and self._holder is None:
            self._holder, _ = self._waiting.popitem(last=False)
            self._holder_since = now
            self._holder.room()

    def overdue(self, now: float, patience_seconds: float) -> Reader | None:
        """The holder, if it has held the others up for too long."""
        return self._holder if self._holder and now - self._holder_since > patience_seconds else None
