"""etcd as the store of a cluster: the servers that etcd.connect names, and sessions with them."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pybroker.coordination.store import Session, Store
from pybroker.logs import event

from .link import Servers
from .session import EtcdSession

log = logging.getLogger(__name__)

CLOSE_S_MAX: Final = 3.0
SILENT_S: Final = 2.0
"""After this time without an answer, a start logs which servers it waits for."""


class EtcdStore(Store):
    """One etcd. Its sessions each have a thread and a copy of the tree."""

    name = "etcd"

    def __init__(self, servers: Servers, *, connection_timeout_ms: int = 18_000) -> None:
        """`connection_timeout_ms`: the time for a session to reach a server."""
        self._servers = servers
        self._timeout_s = connection_timeout_ms / 1000
        self._sessions: list[EtcdSession] = []

    async def open(self) -> None:
        """Do nothing: the first session connects, and needs no node."""

    async def session(self, timeout_ms: int) -> EtcdSession:
        session = EtcdSession(self._servers, timeout_ms)
        said = asyncio.get_running_loop().call_later(SILENT_S, self._say_whom, session)
        try:
            await session.open(self._timeout_s)
        finally:
            said.cancel()
        self._sessions = [each for each in self._sessions if not each.stopped] + [session]
        return session

    def _say_whom(self, session: EtcdSession) -> None:
        event(log, logging.WARNING, "etcd does not answer yet", reason=session.why(), waits_s=self._timeout_s)

    async def why(self) -> str:
        return "; ".join(dict.fromkeys(why for each in self._sessions if (why := each.why())))

    def give_up(self, session: Session) -> str:
        assert isinstance(session, EtcdSession)
        return session.give_up()

    async def close(self) -> None:
        """Close the sessions, within CLOSE_S_MAX."""
        if ends := [session.close() for session in self._sessions]:
            await asyncio.wait(ends, timeout=CLOSE_S_MAX)
        self._sessions.clear()
