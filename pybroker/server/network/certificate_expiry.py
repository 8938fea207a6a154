"""Logs certificates of a listener that expire soon or have expired: at the start, then daily, and after a reload."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

from pybroker.logs import event
from pybroker.security.tls import ListenerContext

log = logging.getLogger(__name__)

DAY_MS: Final = 86_400_000
DAYS_BEFORE: Final = 30
"""Days before its expiry from which a certificate is logged."""


class Endings:
    """The certificate expiry warnings of one listener."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._told_of: ListenerContext | None = None
        self._told_ms = 0

    def tell(self, context: ListenerContext, now_ms: int) -> None:
        """Log the warnings that are due; call at short intervals. `now_ms`: the wall clock."""
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
                reason=f"TLS handshakes {'fail' if over else 'will fail then'}: give the listener another key store or "
                "trust store with pybroker configs alter, without a restart",
            )
