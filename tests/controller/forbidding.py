"""A store in memory that refuses access to some nodes, as ZooKeeper does with NoAuth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pybroker.coordination.memory import MemorySession, MemoryStore
from pybroker.coordination.store import Answer, Op, Stat, StoreFailed, Watch

NO_AUTH = "the ACL of this node is another's"


class ForbiddingSession(MemorySession):
    """A session that may only ask whether the nodes in `store.forbidden` exist."""

    _store: ForbiddingStore

    def get(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[tuple[bytes, Stat]]:
        return self._refused(path) or super().get(path, watch=watch)

    def children(self, path: str, *, watch: Watch | None = None) -> asyncio.Future[tuple[list[str], Stat]]:
        return self._refused(path) or super().children(path, watch=watch)

    def _write(self, op: Op) -> asyncio.Future[Any]:
        return self._refused(op.path) or super()._write(op)

    def multi(self, ops: Sequence[Op]) -> asyncio.Future[list[Answer]]:
        refused = (self._refused(op.path, index) for index, op in enumerate(ops))
        return next((future for future in refused if future is not None), None) or super().multi(ops)

    def _refused(self, path: str, index: int | None = None) -> asyncio.Future[Any] | None:
        if path not in self._store.forbidden or self.id in self._store.owners:
            return None
        future: asyncio.Future[Any] = self._loop.create_future()
        future.set_exception(StoreFailed(path, NO_AUTH, index))
        return future


class ForbiddingStore(MemoryStore):
    """`forbidden` are paths, and `owners` the sessions that may use them all the same."""

    session_type = ForbiddingSession

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.forbidden: set[str] = set()
        self.owners: set[int] = set()
