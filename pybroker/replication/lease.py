"""Until when this broker may act as a leader alone: take records with acks 0 and 1, have an ISR changed, and say where
logs end and groups stand. Once it has lapsed, followers may prove the latter (`proof.py`).

    registered ──told of each partition that it leads, under this registration──> sure: the session's lease counts
        ^                                                                            │
        └── another registration: somebody else may lead meanwhile ──────────────────┘

A session that lives says that nobody took this broker for dead since it was registered. What was decided while it was
not registered, only the controller can tell it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pybroker.model import TopicPartition

NO_MEMBER_MS = 1
"""In place of a time: others may have been elected, and this broker has not heard of it from the controller. 0 is the
lease of a broker that needs none."""
LAPSED_MS = 2
"""A time that is past."""


class Lease:
    """Of one broker; `hold` is called with until when it lasts, by the clock since boot, as often as that changes, and
    `prolong` where it goes on: that may be on another thread."""

    def __init__(self, hold: Callable[[int], object], prolong: Callable[[int], object]) -> None:
        self._hold = hold
        self._prolong = prolong
        self._lock = threading.RLock()  # or a renewal might come behind the loss that it knows nothing of
        self._until_ms = NO_MEMBER_MS
        self._epoch = -1
        self._early: dict[TopicPartition, int] = {}  # under which later broker epoch each was told
        self._unsure: set[TopicPartition] = set()

    def renew(self, until_ms: int) -> None:
        """The session is alive until then."""
        with self._lock:
            self._until_ms = until_ms
            self._apply()

    def go_on(self, until_ms: int) -> None:
        """The session is alive until then, says its own thread: a lease that is held lasts so long."""
        with self._lock:
            if self._until_ms > LAPSED_MS:
                self._until_ms = max(self._until_ms, until_ms)
                if not self._unsure:
                    self._prolong(self._until_ms)

    def registered(self, epoch: int, led: Iterable[TopicPartition]) -> None:
        """The broker is registered under this epoch, and has led these partitions until now."""
        with self._lock:
            if epoch != self._epoch:
                self._epoch = epoch
                self._unsure = {key for key in led if self._early.get(key, -1) < epoch}
                self._early = {key: told for key, told in self._early.items() if told > epoch}
            self._apply()

    def told(self, epoch: int, keys: Iterable[TopicPartition]) -> None:
        """The controller has told what these are now, to the broker of this epoch, which it may know before we do."""
        for key in keys:
            if epoch > self._epoch:
                self._early[key] = max(epoch, self._early.get(key, -1))
            if epoch >= self._epoch:
                self._unsure.discard(key)
        self._apply()

    def _apply(self) -> None:
        with self._lock:
            self._hold(NO_MEMBER_MS if self._unsure else self._until_ms)
