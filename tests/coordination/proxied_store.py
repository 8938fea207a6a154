"""ZooKeeper with a proxy for each session, whose connection the test can break."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Callable

from pybroker.coordination.memory import Fate
from pybroker.coordination.zookeeper import ZooKeeperSession, ZooKeeperStore
from tests.coordination.zookeeper_proxy import ZooKeeperProxy

CLOSE_SESSION = -11
TIMEOUT_MS = 10_000


def close_from_elsewhere(address: str, credentials: tuple[int, bytes]) -> None:
    """Close a session from another connection, which needs its id and password.

    Both requests go in one write: between two writes the session's own client would take the session back.
    """
    session_id, password = credentials
    opening = struct.pack(">iqiqi", 0, 0, TIMEOUT_MS, session_id, len(password)) + password
    closing = struct.pack(">ii", 1, CLOSE_SESSION)
    host, port = address.split(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT_MS / 1000) as connection:
        connection.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in (opening, closing)))
        while connection.recv(1024):
            pass


class ProxiedSession(ZooKeeperSession):
    """A session with `fate`, `disconnect`, `reconnect`, `suspend` and `resume` like a MemorySession."""

    def __init__(self, proxy: ZooKeeperProxy, root: str, address: str, timeout_ms: int) -> None:
        super().__init__(f"127.0.0.1:{proxy.port}{root}", timeout_ms)
        self._address = address
        self._proxy = proxy

    async def open(self, timeout_s: float) -> None:
        await super().open(timeout_s)
        self._credentials = self._client.client_id

    @property
    def fate(self) -> Callable[[], Fate]:
        return self._proxy.fate

    @fate.setter
    def fate(self, fate: Callable[[], Fate]) -> None:
        if self._next is not None:
            self._next.cancel()  # a session that is not answered in time would break its connection itself
        self._proxy.fate = fate

    def disconnect(self) -> None:
        self._proxy.break_off()

    def reconnect(self) -> None:
        self._proxy.take_on()

    def suspend(self) -> None:
        self._proxy.silence()

    def resume(self) -> None:
        self._proxy.speak()

    def expire(self) -> None:
        close_from_elsewhere(self._address, self._credentials)


class ProxiedStore(ZooKeeperStore):
    """A new chroot in a running ZooKeeper."""

    def __init__(self, port: int) -> None:
        self._root = f"/test-{uuid.uuid4().hex}"
        self._port = port
        super().__init__(f"127.0.0.1:{port}{self._root}")
        self._proxies: list[ZooKeeperProxy] = []

    async def session(self, timeout_ms: int) -> ProxiedSession:
        proxy = ZooKeeperProxy(self._port)
        await proxy.open()
        session = ProxiedSession(proxy, self._root, f"127.0.0.1:{self._port}", timeout_ms)
        await session.open(10)
        self._proxies.append(proxy)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        await super().close()
        for proxy in self._proxies:
            await proxy.close()
