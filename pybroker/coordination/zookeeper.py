"""ZooKeeper as the store of a cluster: an ensemble, and sessions with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from kazoo.hosts import collect_hosts

from pybroker.config import BrokerConfig
from pybroker.logs import event
from pybroker.model import HostPort

from . import store as s
from .addresses import are_here
from .commit import until_answered
from .zookeeper_access import ZooKeeperAccess, access_of
from .zookeeper_probe import ASK_TLS_S, ProbeResult, found_at
from .zookeeper_session import ANYBODY, ZooKeeperSession

log = logging.getLogger(__name__)

CLOSE_S_MAX: Final = 3.0
LOOK_S_MAX: Final = 48.0
"""The longest timeout of a probe with TLS; it doubles after each probe without an answer. Abandoned handshakes cost the
server work: many clients with short timeouts can keep it from ever completing one."""
SILENT_S: Final = 2.0
"""After this time without an answer, a start logs which servers it waits for."""


class ZooKeeperStore(s.Store):
    """The ensemble that zookeeper.connect names: HOST:PORT,HOST:PORT/chroot."""

    def __init__(self, connect: str, *, connection_timeout_ms: int = 18_000, access: ZooKeeperAccess = ANYBODY) -> None:
        """`connection_timeout_ms`: the time for the first session to reach a server."""
        self._access = access
        self._hosts, slash, chroot = connect.partition("/")
        self._chroot = (slash + chroot).rstrip("/")
        self._timeout_s = connection_timeout_ms / 1000
        self._sessions: list[ZooKeeperSession] = []
        self._look_s = ASK_TLS_S
        self._latest = -1
        """The latest zxid of all servers that were serving at the last probe; -1 if none was."""
        self._seen: dict[ZooKeeperSession, int] = {}
        """The last zxid of each session, as it was before that probe."""

    async def open(self) -> None:
        """If there is a chroot, connect and create it, as Kafka does. Raises StoreFailed in one sentence."""
        if not self._chroot:
            return
        for last in (False, False, True):
            if await self._made_chroot(last):
                return

    async def _made_chroot(self, last: bool) -> bool:
        """Create the chroot in a session of its own. False if the session expired, as when a starting process is
        suspended; the `last` attempt raises SessionExpired."""
        session = await self._reach(self._hosts, int(self._timeout_s * 1000))
        self._sessions.append(session)
        path = ""
        try:
            async with asyncio.timeout(self._timeout_s):
                for name in self._chroot.strip("/").split("/"):
                    path = f"{path}/{name}"
                    if await until_answered(lambda path=path: session.exists(path)):  # type: ignore[misc]
                        continue  # a create could be forbidden here by the parent's ACL
                    with contextlib.suppress(s.NodeExists):
                        await until_answered(lambda path=path: session.create(path))  # type: ignore[misc]
                        event(log, logging.INFO, "chroot created", at=self._hosts, path=path)
        except TimeoutError:
            problem = f"ZooKeeper at {self._hosts} did not create {path} in {self._timeout_s:g} s (zookeeper.connect)"
            raise s.StoreFailed(detail=problem) from None
        except s.SessionExpired as problem:
            if last:
                raise
            event(log, logging.WARNING, "session expired at the start", reason=problem)
            return False
        finally:
            ended = session.close()
        await ended
        return True

    async def session(self, timeout_ms: int) -> ZooKeeperSession:
        session = await self._reach(self._hosts + self._chroot, timeout_ms)
        self._sessions = [each for each in self._sessions if not each.stopped] + [session]
        return session

    async def _reach(self, hosts: str, timeout_ms: int) -> ZooKeeperSession:
        session = ZooKeeperSession(hosts, timeout_ms, self._access)
        said = session.loop.create_task(self._say_whom())
        try:
            await session.open(self._timeout_s)
        except s.StoreRefused as problem:
            raise s.StoreRefused(detail=self._refusal(problem.detail)) from None
        except s.StoreFailed as problem:
            why = await self.why()
            raise s.StoreFailed(detail=f"{problem.detail} at {self._hosts} (zookeeper.connect): {why}") from None
        finally:
            said.cancel()
        return session

    async def _say_whom(self) -> None:
        await asyncio.sleep(SILENT_S)
        why = await self.why()
        event(log, logging.WARNING, "ZooKeeper does not answer yet", reason=why, waits_s=self._timeout_s)

    def _refusal(self, why: str) -> str:
        name, login = "zookeeper.sasl.client.username", self._access.login
        whom = f"set {name}" if login is None else f"{login.user!r} ({name})"
        return f"ZooKeeper at {self._hosts} (zookeeper.connect) {why}: {whom}"

    async def why(self) -> str:
        found = await self._look()
        refused = {self._refusal(each.refused) for each in self._sessions if each.refused and not each.stopped}
        return "; ".join([*(each.words for each in found), *refused])

    async def _look(self) -> list[ProbeResult]:
        """Probe each address of the ensemble."""
        seen = {session: session.last_zxid for session in self._sessions}
        last, hosts = max(seen.values(), default=0), collect_hosts(self._hosts)[0]
        looks = (found_at(HostPort(*host), last, self._access.tls, self._look_s) for host in hosts)
        found = await asyncio.gather(*looks)
        self._seen, self._latest = seen, max(each.zxid for each in found)
        self._look_s = min(LOOK_S_MAX, 2 * self._look_s) if self._latest < 0 else ASK_TLS_S
        return found

    def give_up(self, session: s.Session) -> str:
        """Expire a session if, at the last probe, no serving server had a transaction as late as the session's last.

        A server refuses such a session. One that only lags refuses it for a while, so all servers are probed."""
        assert isinstance(session, ZooKeeperSession)
        seen = self._seen.get(session, 0)
        if not 0 <= self._latest < seen or not session.give_up():
            return ""
        return f"ZooKeeper has transactions up to {self._latest:#x}, but the session has seen {seen:#x}"

    async def close(self) -> None:
        """Close the sessions. Does not wait for an attempt to connect, as to a host that is gone."""
        if ends := [session.close() for session in self._sessions]:
            await asyncio.wait(ends, timeout=CLOSE_S_MAX)
        self._sessions.clear()


def store_of(config: BrokerConfig) -> ZooKeeperStore:
    """Return the store for the ensemble in a broker's settings. Raises ConfigError."""
    connect: str = config["zookeeper.connect"]
    timeout_ms = config["zookeeper.connection.timeout.ms"] or config["zookeeper.session.timeout.ms"]
    return ZooKeeperStore(connect, connection_timeout_ms=timeout_ms, access=access_of(config))


def is_here(connect: str) -> bool:
    """True if all servers are at localhost or a loopback address."""
    return are_here(name for name, _ in collect_hosts(connect)[0])
