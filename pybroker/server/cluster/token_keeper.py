"""Loads delegation tokens, and removes expired ones while this broker is the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.config.security_settings import TOKEN_SECRET
from pybroker.coordination.store import Session
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata.delegation_tokens import PERSISTENT, TokenStore
from pybroker.metadata.lone_broker import loading
from pybroker.retries import keep_up
from pybroker.security.credentials import Credentials
from pybroker.security.delegation_tokens import DelegationTokens
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)


class TokenKeeper:
    """The delegation tokens of a broker with delegation.token.secret.key."""

    def __init__(self, config: BrokerConfig, session: Callable[[], Session], credentials: Credentials) -> None:
        tokens = credentials.tokens = DelegationTokens(config[TOKEN_SECRET])
        self.store = TokenStore(session, tokens, wall_ms)
        self._interval_s = config["delegation.token.expiry.check.interval.ms"] / 1000
        self._sweeping: asyncio.Task[None] | None = None

    async def load(self, session: Session) -> None:
        """Read all tokens from the store. Raises StoreError."""
        await loading.prepare(session, PERSISTENT)
        await self.store.read_all(session)

    def sweep(self, is_due: Callable[[], bool]) -> None:
        """Remove expired tokens at intervals, when `is_due` returns True."""
        self._sweeping = asyncio.get_running_loop().create_task(
            keep_up(lambda: self._sweep(is_due), "removal of delegation tokens")
        )

    async def close(self) -> None:
        """Stop removing tokens."""
        if self._sweeping is not None:
            await cancel_and_wait(self._sweeping)

    async def _sweep(self, is_due: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if is_due():
                try:
                    await self.store.sweep()
                except KafkaError as problem:
                    event(log, logging.WARNING, "delegation tokens not removed", reason=problem.message)
