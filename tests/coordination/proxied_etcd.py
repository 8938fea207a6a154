"""etcd with a proxy for each session, whose connection the test can break."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Callable

from pybroker.coordination.etcd.link import Servers
from pybroker.coordination.etcd.session import EtcdSession
from pybroker.coordination.etcd.store import EtcdStore
from pybroker.coordination.memory import Fate
from pybroker.model import HostPort
from tests.coordination.etcd_proxy import EtcdProxy

HOST = "127.0.0.1"


class ProxiedEtcdSession(EtcdSession):
    """A session with `fate`, `disconnect`, `reconnect`, `suspend` and `resume` like a MemorySession."""

    def __init__(self, proxy: EtcdProxy, target: int, prefix: str, timeout_ms: int) -> None:
        super().__init__(Servers([HostPort(HOST, proxy.port)], prefix), timeout_ms)
        self.proxy = proxy
        self._target = target

    @property
    def fate(self) -> Callable[[], Fate]:
        return self.proxy.fate

    @fate.setter
    def fate(self, fate: Callable[[], Fate]) -> None:
        self.proxy.fate = fate

    def disconnect(self) -> None:
        self.proxy.break_off()

    def reconnect(self) -> None:
        self.proxy.take_on()

    def suspend(self) -> None:
        self.proxy.silence()

    def resume(self) -> None:
        self.proxy.speak()

    def expire(self) -> None:
        """Revoke the lease from elsewhere."""
        body = json.dumps({"ID": str(self.id)}).encode()
        with urllib.request.urlopen(f"http://{HOST}:{self._target}/v3/lease/revoke", body) as answer:
            answer.read()


class ProxiedEtcd(EtcdStore):
    """A prefix in a running etcd, a new one unless it is given."""

    def __init__(self, port: int, prefix: str = "") -> None:
        self.prefix = prefix or f"/test-{uuid.uuid4().hex}"
        self._port = port
        self.servers = Servers([HostPort(HOST, port)], self.prefix)
        super().__init__(self.servers)
        self._proxies: list[EtcdProxy] = []

    async def session(self, timeout_ms: int) -> ProxiedEtcdSession:
        proxy = EtcdProxy(self._port)
        await proxy.open()
        self._proxies.append(proxy)
        session = ProxiedEtcdSession(proxy, self._port, self.prefix, timeout_ms)
        await session.open(10)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        await super().close()
        for proxy in self._proxies:
            await proxy.close()
