"""Renewals of a lease on the session's thread, so that a stalled event loop does not lose the lease.

    the event loop         look ──> is the registration there? ──yes──> keep ──if there was no news since the look──┐
    the session's thread   an answer ──> moved ──> the lease is renewed <───────────────────────────────────────────┘
                           an event of the registration's node, another state ──> news: no renewals until a next look

The thread reads no nodes itself. If the node or the session is gone, an event is on its way to the loop; from then on
the store's answers prove nothing.
"""

import threading
from collections.abc import Callable

from pybroker.clock import boot_ms


class Renewals:
    """The renewals of one session. `answered_ms`: when its latest answered request was sent (clock since boot)."""

    def __init__(self) -> None:
        self.answered_ms = boot_ms()
        self._lock = threading.Lock()
        self._path = ""
        self._news = 0
        self._renew: Callable[[int], object] | None = None

    # -- on the event loop -------------------------------------------------------------------------------------------

    def look(self, path: str) -> int:
        """Return the count of news for `keep`; call this before reading the node that the lease depends on."""
        with self._lock:
            self._path = path
            return self._news

    def keep(self, since: int, renew: Callable[[int], object]) -> None:
        """Call `renew` with each later `answered_ms`, on the session's thread, unless there was news since `look`."""
        with self._lock:
            if since == self._news:
                self._renew = renew

    @property
    def are_due(self) -> bool:
        """True if the node was read, and there was no news since."""
        return self._renew is not None

    # -- on any thread -----------------------------------------------------------------------------------------------

    def moved(self, sent_ms: int) -> None:
        """Note the answer to a request that was sent at this time."""
        with self._lock:  # no renewal ends after `news` has returned
            if sent_ms > self.answered_ms:
                self.answered_ms = sent_ms
                if self._renew is not None:
                    self._renew(sent_ms)

    def news(self, path: str | None = None) -> None:
        """Stop renewing until the loop has looked again, if the lease depends on this node; None: on any node."""
        with self._lock:
            if path is None or path == self._path:
                self._news += 1
                self._renew = None
