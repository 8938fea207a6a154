"""Restored nodes: those of another store with their Stat, in the stores whose tree is our own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import ZXID_MAX, BadArguments, NodeCopy, NoNode, Stat, Store
from pybroker.coordination.tree_session import TreeSession
from tests.coordination.conftest import ETCD, TIMEOUT_MS

HIGH = 5 << 32
"""A zxid of the fifth leader of a ZooKeeper."""


def stat(version: int = 3, creates: int = 0, children: int = 0, size: int = 0) -> Stat:
    return Stat(HIGH, HIGH + 1, 10, 20, version, 2 * creates - children, 0, size, children, HIGH + 2)


@pytest.fixture(params=["embedded", "memory", ETCD])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Each store whose tree is our own, empty and open."""
    opened: Store = MemoryStore()
    if request.param == "embedded":
        opened = EmbeddedStore(str(tmp_path / "coordination.db"))
    elif request.param == "etcd":
        from tests.coordination.proxied_etcd import ProxiedEtcd

        opened = ProxiedEtcd(request.getfixturevalue("etcd").servers[0].port)
    await opened.open()
    yield opened
    await opened.close()


async def session_of(store: Store) -> TreeSession:
    session = await store.session(TIMEOUT_MS)
    assert isinstance(session, TreeSession)
    return session


async def test_nodes_come_with_their_stat(store: Store) -> None:
    """Another session sees them as they were; sequences go on, and zxids are higher than any in them."""
    a, b = await session_of(store), await session_of(store)
    await a.create("/mark")
    copies = [
        NodeCopy("/p", b"data", stat(creates=9, children=1, size=4)),
        NodeCopy("/p/c", b"", stat(version=0)),
    ]
    await a.restore(copies)
    await a.restore(copies)  # an answer was lost
    for each in copies:
        assert await b.get(each.path) == (each.data, each.stat)
    assert (await b.children("/"))[0] == ["mark", "p"] and (await b.children("/p"))[0] == ["c"]
    path, made = await b.create("/p/n-", sequential=True)
    assert path == "/p/n-0000000009" and made.czxid > HIGH + 2
    assert (await b.set("/p", b"", 3)).version == 4
    assert (await a.create("/later"))[1].czxid > made.czxid


async def test_nodes_that_cannot_be_restored(store: Store) -> None:
    """All of the nodes come or none."""
    session = await session_of(store)
    with pytest.raises(NoNode):
        await session.restore([NodeCopy("/p", b"", stat()), NodeCopy("/q/c", b"", stat())])
    for wrong in (
        stat(version=-1),
        stat()._replace(ephemeral_owner=1),
        stat()._replace(mzxid=ZXID_MAX),
        stat(0, 0, -2),
    ):
        with pytest.raises(BadArguments):
            await session.restore([NodeCopy("/p", b"", wrong)])
    assert (await session.children("/"))[0] == []
    await session.restore([NodeCopy("/p", b"", stat()._replace(mzxid=ZXID_MAX - 1))])
    assert (await session.create("/n"))[1].czxid >= ZXID_MAX
