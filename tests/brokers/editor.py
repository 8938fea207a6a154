"""Nodes of a cluster's store that a test reads and writes by hand: with kazoo in ZooKeeper, with as much of its
interface in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from pybroker.coordination.commit import until_answered
from pybroker.coordination.etcd.link import Servers
from pybroker.coordination.etcd.store import EtcdStore
from pybroker.coordination.store import Create, Delete, NodeExists, NoNode, Op, Session, Stat
from pybroker.development.etcd_server import Etcd
from pybroker.development.server_process import HOST
from pybroker.model import HostPort
from tests.stores import AnyStore

CONNECT_S_MAX = 30
SESSION_MS = 10_000
T = TypeVar("T")


class EtcdEditor:
    """The calls of kazoo that tests make, on etcd."""

    def __init__(self, etcd: Etcd, prefix: str) -> None:
        self._runner = asyncio.Runner()
        addresses = [HostPort(HOST, server.port) for server in etcd.servers]
        self._store = EtcdStore(Servers(addresses, prefix), connection_timeout_ms=CONNECT_S_MAX * 1000)
        self._session: Session

    def start(self, timeout: float = CONNECT_S_MAX) -> None:
        """Connect; the time is kazoo's parameter."""
        self._session = self._runner.run(self._store.session(SESSION_MS))

    def stop(self) -> None:
        self._runner.run(self._store.close())

    def close(self) -> None:
        self._runner.close()

    def get(self, path: str) -> tuple[bytes, Stat]:
        return self._do(self._get(path))

    def set(self, path: str, data: bytes) -> None:
        self._do(self._set(path, data))

    def create(self, path: str, data: bytes = b"", *, sequence: bool = False, ephemeral: bool = False) -> None:
        self._do(self._create(path, data, sequence, ephemeral))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        for name in self.get_children(path) if recursive else ():
            self.delete(f"{path}/{name}", recursive=True)
        self._do(self._delete(path))

    def multi(self, ops: Sequence[Op]) -> None:
        """Do all of these operations, or none; in kazoo, a transaction."""
        self._do(self._multi(ops))

    def exists(self, path: str) -> Stat | None:
        return self._do(self._exists(path))

    def get_children(self, path: str) -> list[str]:
        return self._do(self._children(path))

    def ensure_path(self, path: str) -> None:
        names = path.strip("/").split("/")
        for depth in range(1, len(names) + 1):
            if not self.exists(there := f"/{'/'.join(names[:depth])}"):
                self.create(there)

    def _do(self, work: Coroutine[object, object, T]) -> T:
        try:
            return self._runner.run(work)
        except NoNode:
            raise NoNodeError from None
        except NodeExists:
            raise NodeExistsError from None

    async def _get(self, path: str) -> tuple[bytes, Stat]:
        return await until_answered(lambda: self._session.get(path))

    async def _exists(self, path: str) -> Stat | None:
        return await until_answered(lambda: self._session.exists(path))

    async def _children(self, path: str) -> list[str]:
        return (await until_answered(lambda: self._session.children(path)))[0]

    async def _set(self, path: str, data: bytes) -> None:
        await self._session.set(path, data)

    async def _create(self, path: str, data: bytes, sequence: bool, ephemeral: bool) -> None:
        await self._session.create(path, data, sequential=sequence, ephemeral=ephemeral)

    async def _multi(self, ops: Sequence[Op]) -> None:
        await self._session.multi(ops)

    async def _delete(self, path: str) -> None:
        await self._session.delete(path)


Editor = KazooClient | EtcdEditor


def editor_of(store: AnyStore, chroot: str) -> Editor:
    """A client of the store, below a cluster's chroot, which is not started yet."""
    return EtcdEditor(store, chroot) if isinstance(store, Etcd) else KazooClient(store.connect + chroot)


def replace(client: Editor, path: str, data: bytes) -> None:
    """Delete a node and create one without an owner in its place, in one transaction."""
    if isinstance(client, EtcdEditor):
        client.multi([Delete(path), Create(path, data)])
        return
    change = client.transaction()
    change.delete(path)
    change.create(path, data)
    assert change.commit() == [True, path]


@contextmanager
def editing(store: AnyStore, chroot: str) -> Iterator[Editor]:
    """A client of the store, below a cluster's chroot."""
    client = editor_of(store, chroot)
    try:
        client.start(CONNECT_S_MAX)
        yield client
    finally:
        client.stop()
        client.close()
