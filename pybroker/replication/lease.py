"""The lease of a broker: until it lapses, the broker may act as leader without asking its followers.

Under the lease it accepts records with acks 0 and 1, requests ISR changes, and answers with log ends and group states.
Once the lease has lapsed, followers may prove that log ends and group states are still true (`proof.py`).

    registered ──the controller sent a role for each partition led, under this registration──> sure: the lease counts
        ^                                                                                           │
        └── another registration: another broker may lead meanwhile ────────────────────────────────┘

A live session shows that the cluster has not declared this broker dead since it registered. Only the controller knows
the decisions from the time before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pybroker.model import TopicPartition

NO_MEMBER_MS = 1
"""In place of a time: others may have been elected, and the controller has sent no roles since. A broker that needs no
lease has 0."""
LAPSED_MS = 2
"""A time that is always in the past."""


class Lease:
    """The lease of one broker. `hold` is called with the lease's end, by the clock since boot, whenever that changes;
    `prolong` with a later end, perhaps on another thread."""

    def __init__(self, hold: Callable[[int], object], prolong: Callable[[int], object]) -> None:
        self._hold = hold
        self._prolong = prolong
        self._lock = threading.RLock()  # so that no renewal is applied after a loss that it does not know of
        self._until_ms = NO_MEMBER_MS
        self._epoch = -1
        self._early: dict[TopicPartition, int] = {}  # roles sent for a later broker epoch than ours
        self._unsure: set[TopicPartition] = set()

    def renew(self, until_ms: int) -> None:
        """Set the lease's end: the session is alive until then."""
        with self._lock:
            self._until_ms = until_ms
            self._apply()

    def go_on(self, until_ms: int) -> None:
        """Extend the lease, if it is held: the session's own thread found that the session is alive until then."""
        with self._lock:
            if self._until_ms > LAPSED_MS:
                self._until_ms = max(self._until_ms, until_ms)
                if not self._unsure:
                    self._prolong(self._until_ms)

    def registered(self, epoch: int, led: Iterable[TopicPartition]) -> None:
        """Note a registration under this epoch; the broker has led these partitions until now."""
        with self._lock:
            if epoch != self._epoch:
                self._epoch = epoch
                self._unsure = {key for key in led if self._early.get(key, -1) < epoch}
                self._early = {key: told for key, told in self._early.items() if told > epoch}
            self._apply()

    def told(self, epoch: int, keys: Iterable[TopicPartition]) -> None:
        """Note that the controller sent roles for these partitions to this broker epoch, perhaps before we know it."""
        for key in keys:
            if epoch > self._epoch:
                self._early[key] = max(epoch, self._early.get(key, -1))
            if epoch >= self._epoch:
                self._unsure.discard(key)
        self._apply()

    def _apply(self) -> None:
        with self._lock:
            self._hold(NO_MEMBER_MS if self._unsure else self._until_ms)
