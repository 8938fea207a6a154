"""The store of a simulation: in memory, some time away, reachable or not, with connections that break."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from pybroker.coordination.local import LocalStore
from pybroker.coordination.local_session import LocalSession
from pybroker.coordination.memory import Fate, MemorySession, MemoryStore
from pybroker.coordination.store import SessionState
from pybroker.coordination.tree_session import StoreJob
from tests.simulation.virtual import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.broker import Life
    from tests.simulation.world import World

TIMEOUTS_MS = (100, 60_000)


class FarStore(MemoryStore):
    """A store that executes operations submitted within one way together, and then calls `changed`."""

    def __init__(self, loop: VirtualLoop, delay: Callable[[], float]) -> None:
        super().__init__(timeouts_ms=TIMEOUTS_MS, clock_ms=loop.ms, wall_ms=loop.ms)
        self._away, self._delay = loop, delay
        self.changed: Callable[[], object] = lambda: None
        self.expired: set[int] = set()
        self.ended_early: set[int] = set()
        """Sessions that the store ended before their timeout."""

    def submit(self, job: StoreJob) -> asyncio.Future[Any]:
        if self._tree is None:
            return super().submit(job)
        if not self._waiting:
            self._away.later(self._delay(), self._turn)
        self._waiting.append(job)
        return job.future

    def _turn(self) -> None:
        assert self._tree is not None
        before = self._tree.zxid
        super()._turn()
        if self._tree.zxid != before:
            self.changed()

    def forget(self, session: LocalSession) -> None:
        if session.state is not SessionState.CLOSED:
            self.expired.add(session.id)
        super().forget(session)

    def read(self, path: str) -> tuple[bytes, Any]:
        """The data of a node. Raises NoNode."""
        assert self._tree is not None
        return self._tree.get(path)

    def children(self, path: str) -> list[str]:
        """The names of a node's children. Raises NoNode."""
        assert self._tree is not None
        return self._tree.children(path)[0]

    def copy(self) -> sqlite3.Connection:
        """Copy all nodes as they are now."""
        assert self._tree is not None
        found = sqlite3.connect(":memory:")
        self._tree._sql.backup(found)
        return found

    def restore(self, copy: sqlite3.Connection, kept: Collection[MemorySession] = ()) -> None:
        """Restore the nodes of a copy without the ephemeral ones of ended sessions. All sessions have ended but the
        `kept` ones, which were open when the copy was made; they lose their connection."""
        assert self._tree is not None
        super()._turn()
        for session in kept:
            session.disconnect()
        for session in [each for each in self._sessions.values() if each not in kept]:
            self.ended_early.add(session.id)
            session._ended_ms = self.clock_ms()
            session._watches.clear()
            LocalStore.forget(self, session)
            session._when_there(partial(session._become, SessionState.EXPIRED))
        copy.backup(self._tree._sql)
        (self._tree.zxid,) = self._tree._one("SELECT value FROM meta WHERE name = 'zxid'")
        owners = {owner for (owner,) in self._tree._sql.execute("SELECT owner FROM node WHERE owner != 0").fetchall()}
        for owner in sorted(owners - {session.id for session in kept}):
            self._tree.end_session(owner)
        self._tree.commit()
        self.changed()


class StoreOfLife:
    """The store as one life of a broker reaches it, unless its way is cut."""

    def __init__(self, world: World, life: Life) -> None:
        self._world, self._life = world, life

    async def session(self, timeout_ms: int) -> MemorySession:
        """Open a session whose connection returns a while after it broke."""
        world, life = self._world, self._life
        while life.number in world.storeless:
            await asyncio.sleep(0.1)
        session = await world.store.session(timeout_ms)
        life.sessions = [old for old in life.sessions if old._ended_ms is None] + [session]
        session.fate = self._fate
        session.listen(partial(self._lost, session))
        return session

    def _fate(self) -> Fate:
        random, world = self._world.random, self._world
        if world.store_loss == 0 or random.random() >= world.store_loss:
            return Fate.ANSWERED
        return random.choice((Fate.LOST_BEFORE, Fate.LOST_AFTER))

    def _lost(self, session: MemorySession, state: SessionState) -> None:
        if state is SessionState.DISCONNECTED:
            wait_s = self._world.random.choice((0.01, 0.1, 0.5, 1.2)) * session.timeout_ms / 1000
            self._world.loop.later(wait_s, self._world.reach_store, self._life)
