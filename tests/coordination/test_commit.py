"""A write whose connection breaks is done exactly once, or raises an error that its outcome is unknown."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pybroker.coordination.commit import ENDS_MAX, commit, until_answered
from pybroker.coordination.memory import Fate, MemoryStore
from pybroker.coordination.store import (
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Op,
    Session,
    SessionExpired,
    SessionState,
    Set,
    Store,
    StoreError,
    StoreFailed,
)
from tests.coordination.conftest import ETCD, TIMEOUT_MS, ZOOKEEPER
from tests.rows import with_each

loses = pytest.mark.parametrize("store", ["memory", ZOOKEEPER, ETCD], indirect=True)
FENCE = Check("/epoch", 0)
BEFORE: list[Op] = [Create("/epoch", b"1"), Create("/n", b"old"), Create("/old", b"x"), Create("/dir")]
KINDS: dict[str, list[Op]] = {
    "create": [Create("/new", b"data")],
    "ephemeral": [Create("/new", b"data", ephemeral=True)],
    "set": [Set("/n", b"new")],
    "set-at-a-version": [Set("/n", b"new", 0)],
    "delete": [Delete("/old", 0)],
    "fenced": [FENCE, Set("/n", b"new"), Create("/dir/child", b"c"), Delete("/old")],
    "numbered": [FENCE, Set("/n", b"new", 0), Create("/dir/n-", sequential=True)],
    "claim": [Create("/new", b"me", ephemeral=True), Set("/n", b"2", 0)],
    "twice": [FENCE, Delete("/old"), Create("/old", b"again"), Set("/old", b"and again", 0)],
}


def losing(session: Any, *fates: Fate) -> None:
    """Set the fates of the session's next operations; it reconnects at once."""
    to_come = iter(fates)
    session.fate = lambda: next(to_come, Fate.ANSWERED)
    loop = asyncio.get_running_loop()
    session.listen(lambda now: loop.call_soon(session.reconnect) if now is SessionState.DISCONNECTED else None)


async def tree(session: Session, mine: int, path: str = "/") -> list[tuple[object, ...]]:
    """Every node: data, version, cversion, and whether its owner is `mine`."""
    data, stat = await session.get(path)
    found: list[tuple[object, ...]] = [(path, data, stat.version, stat.cversion, stat.ephemeral_owner == mine)]
    for name in (await session.children(path))[0]:
        found += await tree(session, mine, f"{path.rstrip('/')}/{name}")
    return found


async def blindly(session: Session, ops: Sequence[Op]) -> None:
    """Repeat a write until it is answered, which is wrong."""
    await until_answered(lambda: session.multi(ops))


async def done(store: Store, ops: list[Op], *fates: Fate, how: Any = commit) -> list[tuple[object, ...]]:
    """The tree of a new store after a write that met these fates."""
    a, other = await store.session(TIMEOUT_MS), await store.session(TIMEOUT_MS)
    await a.multi(BEFORE)
    losing(a, *fates)
    await how(a, ops)
    left = await tree(other, a.id)
    await a.close()
    await other.close()
    return left


async def in_memory(ops: list[Op], *fates: Fate, how: Any = commit) -> list[tuple[object, ...]]:
    store = MemoryStore()
    await store.open()
    try:
        return await done(store, ops, *fates, how=how)
    finally:
        await store.close()


@loses
@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_that_loses_its_connection_is_done_once(store: Store, kind: str, fate: Fate) -> None:
    assert await done(store, KINDS[kind], fate) == await in_memory(KINDS[kind])


@with_each("kind", KINDS)
async def test_so_is_one_that_loses_it_again_and_again(kind: str) -> None:
    """A write is done once if any four operations lose their connection, including its reads."""
    expected = await in_memory(KINDS[kind])
    for fates in itertools.product(Fate, repeat=4):
        assert await in_memory(KINDS[kind], *fates) == expected, fates


async def test_a_write_that_ends_each_connection_is_given_up() -> None:
    """A write at which each connection ends, while other requests are answered, fails after ENDS_MAX repeats."""
    store = MemoryStore()
    await store.open()
    session = await store.session(TIMEOUT_MS)
    await session.multi(BEFORE)
    losing(session, *(Fate.LOST_BEFORE, Fate.ANSWERED, Fate.ANSWERED) * (ENDS_MAX + 1))
    with pytest.raises(StoreFailed, match=f"the connection has ended {ENDS_MAX + 1} times at this write"):
        await commit(session, KINDS["set"])
    assert (await session.get("/n"))[0] == b"old"
    await store.close()


@with_each("kind", KINDS)
async def test_sending_again_blindly_does_not_pass(kind: str) -> None:
    """A blind repeat fails these tests for each kind of write: it writes twice, or misjudges its own write."""
    expected = await in_memory(KINDS[kind])
    try:
        left = await in_memory(KINDS[kind], Fate.LOST_AFTER, how=blindly)
    except StoreError:
        return
    assert left != expected


@loses
@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER], ids=["before", "after"])
async def test_a_write_whose_check_fails_meanwhile_is_refused(store: Store, fate: Fate) -> None:
    """A write that lost its connection is refused if its check fails meanwhile, and is not done afterwards."""
    a: Any = await store.session(10 * TIMEOUT_MS)  # only the fate may break its connection, however slow the machine
    b = await store.session(TIMEOUT_MS)
    await a.multi(BEFORE)
    to_come = iter([fate])
    a.fate = lambda: next(to_come, Fate.ANSWERED)
    lost = asyncio.Event()
    a.listen(lambda now: lost.set() if now is SessionState.DISCONNECTED else None)
    writing = asyncio.ensure_future(commit(a, [Set("/n", b"new"), FENCE, Create("/new")]))
    await lost.wait()
    await b.set("/epoch", b"2")
    before = await tree(b, a.id)
    a.reconnect()
    with pytest.raises(BadVersion) as refused:
        await writing
    assert (refused.value.path, refused.value.index) in {("/epoch", 1), ("", 1)}
    assert await tree(b, a.id) == before
    assert bool(await b.exists("/new")) is (fate is Fate.LOST_AFTER)


@with_each(
    ("mine", "others", "error"),
    [
        ([Set("/n", b"new", 0)], [[Set("/n", b"others")]], BadVersion),
        ([Set("/n", b"new", 0)], [[Set("/n", b"others")], [Set("/n", b"new")]], BadVersion),
        ([Create("/new", b"x", ephemeral=True)], [[Create("/new", b"x", ephemeral=True)]], NodeExists),
        ([Create("/new", b"x", ephemeral=True)], [[Create("/new", b"x")]], NodeExists),
        ([Create("/new", b"x")], [[Create("/new", b"y")]], NodeExists),
        ([Create("/new"), Create("/newer")], [[Create("/new")], [Create("/newer")]], NodeExists),
        ([Delete("/old"), Set("/n", b"new", 0)], [[Delete("/old")]], NoNode),
    ],
    ids=str,
)
async def test_what_others_did_is_not_taken_for_ones_own(mine: list[Op], others: list[list[Op]], error: Any) -> None:
    """Another owner, data, version or number of transactions is not taken for the session's own write."""
    store = MemoryStore()
    await store.open()
    a, b = await store.session(TIMEOUT_MS), await store.session(TIMEOUT_MS)
    await a.multi(BEFORE)
    a.fate = iter([Fate.LOST_BEFORE, *[Fate.ANSWERED] * 10]).__next__
    lost = asyncio.Event()
    a.listen(lambda now: lost.set())
    writing = asyncio.ensure_future(commit(a, mine))
    await lost.wait()
    for ops in others:
        await b.multi(ops)
    a.reconnect()
    with pytest.raises(error):
        await writing
    await store.close()


@loses
async def test_what_cannot_be_told_is_said_to_be_unknown(store: Store) -> None:
    """A write is reported as unknown if the session ends before it can read back, or for a node with only a number."""
    a: Any = await store.session(TIMEOUT_MS)
    b: Any = await store.session(TIMEOUT_MS)
    await a.multi(BEFORE)
    a.fate = iter([Fate.LOST_AFTER, *[Fate.ANSWERED] * 10]).__next__
    a.listen(lambda now: (a.expire(), a.reconnect()) if now is SessionState.DISCONNECTED else None)
    with pytest.raises(ConnectionLoss) as unknown:
        await commit(a, [Set("/n", b"new")])
    assert "session ended" in str(unknown.value)
    with pytest.raises(SessionExpired):
        await commit(a, [Set("/n", b"new")])
    losing(b, Fate.LOST_AFTER)
    with pytest.raises(ConnectionLoss):
        await commit(b, [FENCE, Create("/dir/n-", sequential=True)])
    assert len((await b.children("/dir"))[0]) == 1


async def test_a_refusal_is_a_refusal(store: Store) -> None:
    """Without a broken connection `commit` behaves like `multi`."""
    a = await store.session(TIMEOUT_MS)
    await commit(a, BEFORE)
    with pytest.raises(NodeExists) as refused:
        await commit(a, [FENCE, Create("/n")])
    assert refused.value.index == 1
    await commit(a, [FENCE])
    await commit(a, [])
