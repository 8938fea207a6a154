"""Logs which certificates of a listener end soon or have ended: at the broker's start, then once a day, and at once
for those that take their place."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

from pybroker.logs import event
from pybroker.security.tls import ListenerContext

log = logging.getLogger(__name__)

DAY_MS: Final = 86_400_000
DAYS_BEFORE: Final = 30
"""So long before its end a certificate is told of."""


class Endings:
    """Of one listener."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._told_of: ListenerContext | None = None
        self._told_ms = 0

    def tell(self, context: ListenerContext, now_ms: int) -> None:
        """Tell what is to be told now; to be called every now and then. `now_ms` is the wall clock's."""
        if context is self._told_of and 0 <= now_ms - self._told_ms < DAY_MS:
            return
        self._told_of, self._told_ms = context, now_ms
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        for ending in context.endings:
            left = ending.ends - now
            if left.days >= DAYS_BEFORE:
                continue
            over = left.total_seconds() <= 0
            event(
                log,
                logging.ERROR if over else logging.WARNING,
                "certificate has expired" if over else "certificate expires soon",
                listener=self._listener,
                subject=ending.subject,
                ends=f"{ending.ends:%Y-%m-%d %H:%M:%S} UTC",
                store=ending.store,
                reason=f"{'nobody connects' if over else 'nobody will connect then'}; another store is taken while the "
                "broker runs, by pybroker configs alter",
            )
