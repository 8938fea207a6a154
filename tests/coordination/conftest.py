"""Stores for the same tests: the embedded one, the one in memory, ZooKeeper itself if Java is installed, and etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import Session, Store
from pybroker.coordination.tree import Tree
from pybroker.coordination.tree_session import StoreJob
from pybroker.development.etcd_server import Etcd
from pybroker.development.zookeeper_server import ZooKeeper

TIMEOUT_MS = 4000


@contextlib.asynccontextmanager
async def opened(path: Path, **how: Any) -> AsyncIterator[EmbeddedStore]:
    """An embedded store in a file, closed in the end."""
    store = EmbeddedStore(str(path), **how)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def on_the_thread(store: EmbeddedStore, work: Callable[[Tree], object]) -> Any:
    """Run `work` on the store's thread with its tree."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return await store.submit(StoreJob(lambda tree, events: work(tree), future))


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    async with opened(tmp_path / "coordination.db") as store:
        yield store


ZOOKEEPER = pytest.param("zookeeper", marks=[pytest.mark.java, pytest.mark.xdist_group("zookeeper")])

ETCD = pytest.param("etcd", marks=[pytest.mark.xdist_group("etcd")])


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """A real etcd server for the whole test run."""
    with Etcd() as running:
        yield running


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """A real ZooKeeper server for the whole test run."""
    with ZooKeeper() as running:
        yield running


@pytest.fixture(params=["embedded", "memory", ZOOKEEPER, ETCD])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Each kind of store in turn, empty and open."""
    opened: Store
    if request.param == "embedded":
        opened = EmbeddedStore(str(tmp_path / "coordination.db"))
    elif request.param == "memory":
        opened = MemoryStore()
    elif request.param == "etcd":
        from tests.coordination.proxied_etcd import ProxiedEtcd

        opened = ProxiedEtcd(request.getfixturevalue("etcd").servers[0].port)
    else:
        from tests.coordination.proxied_store import ProxiedStore

        opened = ProxiedStore(request.getfixturevalue("zookeeper").servers[0].port)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def a(store: Store) -> Session:
    """A session of the store."""
    return await store.session(TIMEOUT_MS)


@pytest.fixture
async def b(store: Store) -> Session:
    """Another session of the same store."""
    return await store.session(TIMEOUT_MS)
