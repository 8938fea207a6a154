"""Delegation tokens in the store: each broker reads them all at its start, then those that changed.

    /delegation_token/tokens/<id>                    a token, without its secret (security/delegation_tokens.py)
    /delegation_token/token_changes/token_change_N   each new notice has the id of a token, which is read again

Any broker writes them, with a notice in the same multi. The controller removes expired tokens.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from pybroker import errors
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import (
    Create,
    Delete,
    NodeExists,
    NoNode,
    Op,
    Session,
    Set,
    StoreError,
    StoreFailed,
)
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata.notices import Notices
from pybroker.security.delegation_tokens import DelegationTokens, Token, dump, load

log = logging.getLogger(__name__)

ROOT = "/delegation_token"
TOKENS = f"{ROOT}/tokens"
CHANGES = f"{ROOT}/token_changes"
CHANGE = f"{CHANGES}/token_change_"
PERSISTENT = (ROOT, TOKENS, CHANGES)
READ_AT_ONCE = 1000
CHANGES_KEPT_MS = 15 * 60 * 1000


class TokenStore:
    """Keeps a broker's tokens in step with the store, and changes them."""

    def __init__(self, session: Callable[[], Session], tokens: DelegationTokens, wall_ms: Callable[[], int]) -> None:
        """`session` returns the current session."""
        self.tokens = tokens
        self._session = session
        self._wall_ms = wall_ms
        self._one = asyncio.Lock()

    async def read_all(self, session: Session) -> None:
        """Replace this broker's tokens with those in the store. Raises StoreError."""
        ids, _ = await until_answered(lambda: session.children(TOKENS))
        self.tokens.keep(ids)
        for first in range(0, len(ids), READ_AT_ONCE):
            await asyncio.gather(*(self._read(session, each) for each in ids[first : first + READ_AT_ONCE]))

    async def _read(self, session: Session, token_id: str) -> None:
        token = None
        try:
            token = load((await read(session, f"{TOKENS}/{token_id}"))[0])
        except NoNode:
            pass
        except (ValueError, StoreFailed) as problem:  # the node is damaged, or access is denied
            event(log, logging.ERROR, "delegation token ignored", token=token_id, reason=problem)
        self.tokens.take(token_id, token)

    async def follow(self, session: Session) -> None:
        """Read and apply changes until the session ends. Raises StoreError."""
        with Notices(session, CHANGES) as notices:
            while True:
                fresh = await notices.look()
                if fresh is None:
                    await self.read_all(session)
                for path in fresh or ():
                    await self._heed(session, path)
                await notices.wait()

    async def _heed(self, session: Session, path: str) -> None:
        try:
            token_id = (await read(session, path))[0].decode()
        except NoNode:  # purged meanwhile, so every broker has read it
            return
        except (UnicodeDecodeError, StoreFailed):
            token_id = ""
        if not token_id or "/" in token_id or "\0" in token_id:
            event(log, logging.WARNING, "delegation token notice ignored", path=path, reason="it names no token")
            return
        await self._read(session, token_id)

    # -- changes -----------------------------------------------------------------------------------------------------

    async def add(self, token: Token) -> None:
        """Store a new token. Raises KAFKA_STORAGE_ERROR."""
        await self._write(Create(f"{TOKENS}/{token.id}", dump(token)), token.id)
        self.tokens.take(token.id, token)

    async def alter(self, token: Token) -> None:
        """Replace a stored token. Raises DELEGATION_TOKEN_NOT_FOUND, KAFKA_STORAGE_ERROR."""
        await self._write(Set(f"{TOKENS}/{token.id}", dump(token), -1), token.id)
        self.tokens.take(token.id, token)

    async def remove(self, token_id: str) -> None:
        """Delete a token, if it exists. Raises KAFKA_STORAGE_ERROR."""
        try:
            await self._write(Delete(f"{TOKENS}/{token_id}", -1), token_id)
        except KafkaError as problem:
            if problem.code != errors.DELEGATION_TOKEN_NOT_FOUND:  # another broker has removed it
                raise
        self.tokens.take(token_id, None)

    async def sweep(self) -> None:
        """Remove expired tokens. Raises KafkaError."""
        now_ms = self._wall_ms()
        for token in self.tokens.all():
            if token.ends_ms() <= now_ms:
                await self.remove(token.id)
                event(log, logging.INFO, "delegation token expired", token=token.id, owner=token.owner)

    async def _write(self, change: Op, token_id: str) -> None:
        session = self._session()
        async with self._one:
            try:
                await commit(session, [change, Create(CHANGE, token_id.encode(), sequential=True)])
            except NoNode:
                words = "the delegation token no longer exists"
                raise KafkaError(errors.DELEGATION_TOKEN_NOT_FOUND, words) from None
            except (NodeExists, StoreError) as problem:
                words = f"the coordination store cannot be written to: {problem}"
                raise KafkaError(errors.KAFKA_STORAGE_ERROR, words) from problem
            with contextlib.suppress(StoreError):  # the change is made; the next one removes the notices left
                await self._purge(session)

    async def _purge(self, session: Session) -> None:
        """Remove notices older than CHANGES_KEPT_MS: every broker has read them."""
        names, _ = await session.children(CHANGES)
        for name in sorted(names):
            stat = await session.exists(f"{CHANGES}/{name}")
            if stat is None or stat.ctime_ms >= self._wall_ms() - CHANGES_KEPT_MS:
                return  # sorted by age: the rest are younger
            await session.delete(f"{CHANGES}/{name}")
