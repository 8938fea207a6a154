"""The store on etcd: transactions that conflict, are large, or lost; leases; and keys that others have changed."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import urllib.request
from typing import Any

import pytest

from pybroker.clock import boot_ms
from pybroker.coordination.commit import commit
from pybroker.coordination.etcd import ledger
from pybroker.coordination.etcd.http import EtcdUnanswered
from pybroker.coordination.etcd.replica import ReplicatedTree
from pybroker.coordination.memory import Fate
from pybroker.coordination.store import (
    DATA_BYTES_MAX,
    BadVersion,
    ConnectionLoss,
    Create,
    Delete,
    Op,
    Session,
    SessionState,
    Set,
    Store,
    StoreFailed,
)
from pybroker.development.etcd_server import Etcd
from tests.coordination.conftest import ETCD, TIMEOUT_MS
from tests.coordination.proxied_etcd import ProxiedEtcd
from tests.harness import eventually

pytestmark = [pytest.mark.parametrize("store", [ETCD], indirect=True), pytest.mark.xdist_group("etcd")]
PATH = "/brokers/ids/1"
WAIT_S = 60


def ask(etcd: Etcd, path: str, **body: Any) -> Any:
    """Ask the server for something beside any session."""
    with urllib.request.urlopen(f"{etcd.url}/v3/{path}", json.dumps(body).encode()) as answer:
        return json.load(answer)


def of(key: str) -> str:
    return base64.b64encode(key.encode(errors="surrogateescape")).decode()


def prefix_of(store: Store) -> str:
    assert isinstance(store, ProxiedEtcd)
    return store.prefix


async def until(session: Session, state: SessionState) -> None:
    """Wait for a state of a session."""
    reached = asyncio.Event()
    session.listen(lambda now: reached.set() if now is state else None)
    if session.state is not state:
        await reached.wait()


# -- transactions -----------------------------------------------------------------------------------------------------


async def test_sessions_that_write_at_once_lose_no_write(store: Store) -> None:
    """Each of four sessions adds to one number 25 times, by compare-and-set; each version is written by one of them."""
    sessions = [await store.session(TIMEOUT_MS) for _ in range(4)]
    await sessions[0].create("/n", b"0")

    async def add(session: Session) -> None:
        done = 0
        while done < 25:
            data, stat = await session.get("/n")
            try:
                await session.set("/n", b"%d" % (int(data) + 1), stat.version)
                done += 1
            except BadVersion:
                continue

    await asyncio.gather(*map(add, sessions))
    data, stat = await sessions[0].get("/n")
    assert (data, stat.version) == (b"100", 100)


async def test_operations_that_do_not_fit_together_are_done_twice_at_most(store: Store) -> None:
    """The end of a transaction is found while its operations are evaluated, not by halves of all that wait."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    await a.create("/p")
    done, write = 0, ReplicatedTree.multi

    def count(self: Any, *how: Any) -> Any:
        nonlocal done
        done += 1
        return write(self, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicatedTree, "multi", count)
        many = [[Create(f"/p/{n}-{k}") for k in range(1000)] for n in range(40)]
        await asyncio.gather(*(a.multi(ops) for ops in many))
    assert 40 <= done <= 80
    assert len((await a.children("/p"))[0]) == 40_000


async def test_a_transaction_up_to_the_limit(store: Store) -> None:
    """A multi changes CHANGES_MAX nodes, its parent among them; one more is refused, and nothing is done."""
    a = await store.session(10 * TIMEOUT_MS)
    await a.create("/p")
    most: list[Op] = [Create(f"/p/{n}") for n in range(ledger.CHANGES_MAX - 1)]
    with pytest.raises(StoreFailed, match=f"at most {ledger.CHANGES_MAX} nodes, and this one changes 4001"):
        await a.multi([*most, Create("/p/one-more")])
    assert (await a.children("/p"))[0] == []
    await commit(a, most)
    assert len((await a.children("/p"))[0]) == len(most)
    await commit(a, [Delete(op.path) for op in most])


async def test_large_nodes_are_divided_among_transactions(a: Session) -> None:
    """Operations submitted at once that are too large together are several transactions; one multi is refused."""
    data = b"x" * DATA_BYTES_MAX
    await asyncio.gather(*(a.create(f"/large-{n}", data) for n in range(5)))
    for n in range(5):
        assert len((await a.get(f"/large-{n}"))[0]) == DATA_BYTES_MAX
    with pytest.raises(StoreFailed, match=f"holds {ledger.TXN_BYTES_MAX} bytes"):
        await a.multi([Set(f"/large-{n}", data) for n in range(2)])
    await a.set("/large-0", b"")


async def test_a_lost_transaction_has_no_effect_after_the_session_went_on(store: Store) -> None:
    """A transaction that arrives at etcd after the session has connected again, and read back, does nothing."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    await a.create("/n", b"old")
    fates = iter([Fate.LOST_BEFORE])
    a.fate = lambda: next(fates, Fate.ANSWERED)
    with pytest.raises(ConnectionLoss):
        await a.set("/n", b"late")
    a.reconnect()
    assert (await a.get("/n"))[0] == b"old"
    assert b'"succeeded":true' not in await a.proxy.deliver_late()
    assert (await a.get("/n"))[0] == b"old"


async def test_a_lost_transaction_that_arrives_before_the_fence_is_seen(store: Store) -> None:
    """A session's first transaction, lost with its connection, takes effect after the session has loaded the tree
    again, and before its fence: the session has it as all others do."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    b = await store.session(10 * TIMEOUT_MS)
    await b.create("/n", b"old")
    assert (await a.get("/n"))[0] == b"old"
    calls = 0

    def fate() -> Fate:
        nonlocal calls
        calls += 1
        if calls == 2:  # the fence
            a.proxy.deliver_now(a.proxy.kept)
        return Fate.LOST_BEFORE if calls == 1 else Fate.ANSWERED

    a.fate = fate
    a.listen(lambda now: a.reconnect() if now is SessionState.DISCONNECTED else None)
    with pytest.raises(ConnectionLoss):
        await a.set("/n", b"late")
    assert (await a.get("/n"))[0] == (await b.get("/n"))[0] == b"late"
    assert (await a.set("/n", b"next")).version == 2
    assert (await b.get("/n"))[1].version == 2


async def test_a_transaction_that_a_proxy_sends_twice_is_done_once(store: Store) -> None:
    """If only the second answer comes, which says that the clock has moved, the watch decides that it was ours."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    await a.create("/p")
    first: list[bytes] = []

    def fate() -> Fate:
        if not first and b'"compare"' in a.proxy.latest:
            first.append(a.proxy.latest)
            a.proxy.deliver_now(a.proxy.latest)
        return Fate.ANSWERED

    a.fate = fate
    assert (await a.create("/p/n-", sequential=True))[0] == "/p/n-0000000000"
    assert (await a.children("/p"))[0] == ["n-0000000000"]


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER], ids=["before", "after"])
async def test_operations_behind_a_lost_one_are_lost_with_it(store: Store, fate: Fate) -> None:
    """All operations of a broken connection fail; they took effect up to one of them, and none does later."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    await a.create("/n", b"0")
    fates = iter([fate])
    a.fate = lambda: next(fates, Fate.ANSWERED)
    a.listen(lambda now: a.reconnect() if now is SessionState.DISCONNECTED else None)
    asked = [a.set("/n", b"%d" % n) for n in range(1, 4)]
    for each in asked:
        with pytest.raises(ConnectionLoss):
            await each
    data, stat = await a.get("/n")
    assert data == b"%d" % stat.version
    assert (stat.version == 0) is (fate is Fate.LOST_BEFORE)


# -- leases -----------------------------------------------------------------------------------------------------------


async def test_a_session_goes_on_while_the_loop_stands_still(store: Store) -> None:
    """While the event loop is blocked, the session's thread keeps its lease, and renews what depends on it."""
    from pybroker.coordination.etcd.session import EtcdSession

    assert isinstance(store, ProxiedEtcd)
    session = EtcdSession(store.servers, 2000)
    await session.open(WAIT_S)
    await session.create("/mine", ephemeral=True)
    since = session.renewals.look("/mine")
    assert await session.exists("/mine")
    later, stood_ms = threading.Event(), boot_ms()
    session.renewals.keep(since, lambda sent_ms: later.set() if sent_ms > stood_ms + 2500 else None)
    assert later.wait(WAIT_S), "nothing sent a session timeout later was answered"
    assert session.state is SessionState.CONNECTED
    assert await session.exists("/mine")
    await session.close()


async def test_no_lease_goes_on_behind_the_end_of_its_node(store: Store, a: Session) -> None:
    """Once another session has deleted the node, no later answer renews the lease."""
    b = await store.session(TIMEOUT_MS)
    await b.create("/mine", ephemeral=True)
    renewed: list[int] = []
    since = b.renewals.look("/mine")
    assert await b.exists("/mine")
    b.renewals.keep(since, renewed.append)
    await a.delete("/mine")
    gone_ms = boot_ms()
    while b.answered_ms <= gone_ms:
        await b.exists("/")
        await asyncio.sleep(0)
    assert not b.renewals.are_due
    assert all(sent_ms <= gone_ms for sent_ms in renewed)


async def test_nodes_of_sessions_that_ended_unseen_are_deleted_by_the_next_one(store: Store, etcd: Etcd) -> None:
    """If all sessions are gone when a lease ends, its nodes are deleted before the next session sees them."""
    a: Any = await store.session(TIMEOUT_MS)
    await a.create("/ids")
    await a.create("/ids/1", ephemeral=True)
    a.link.stop()
    await a.close()
    ask(etcd, "lease/revoke", ID=str(a.id))
    b = await store.session(TIMEOUT_MS)
    assert (await b.children("/ids"))[0] == []


async def test_a_session_that_ended_while_it_was_disconnected(store: Store, a: Session) -> None:
    """A session learns at its next connection that it has expired; its nodes are gone by then."""
    b: Any = await store.session(TIMEOUT_MS)
    await b.create("/mine", ephemeral=True)
    b.disconnect()
    await until(b, SessionState.DISCONNECTED)
    b.expire()
    waiting = b.set("/mine", b"")
    b.reconnect()
    await b.expired.wait()
    assert await a.exists("/mine") is None
    with pytest.raises(Exception, match="has expired"):
        await waiting


# -- what others do ---------------------------------------------------------------------------------------------------


async def test_history_that_is_compacted_is_not_needed(store: Store, etcd: Etcd, a: Session) -> None:
    """A session that was away while etcd forgot its history reads the tree as it is now."""
    b: Any = await store.session(10 * TIMEOUT_MS)
    await a.create("/n", b"0")
    assert (await b.get("/n"))[0] == b"0"
    b.disconnect()
    await until(b, SessionState.DISCONNECTED)
    await a.set("/n", b"1")
    await a.set("/n", b"2")
    etcd.compact()
    b.reconnect()
    assert (await b.get("/n"))[0] == b"2"
    await b.set("/n", b"3")


async def test_keys_of_another_program_below_the_prefix(store: Store, etcd: Etcd, a: Session) -> None:
    """A node that another program changed, without the clock, is read anew; one that cannot be read is an error."""
    await a.create("/n", b"0")
    heard: list[object] = []
    await a.get("/n", watch=heard.append)
    broken = asyncio.Event()
    a.listen(lambda now: broken.set() if now is SessionState.DISCONNECTED else None)
    key = of(f"{prefix_of(store)}/tree/n")
    (there,) = ask(etcd, "kv/range", key=key)["kvs"]
    value = base64.b64decode(there["value"]).replace(b"\n0", b"\n1")
    ask(etcd, "kv/put", key=key, value=base64.b64encode(value).decode())
    await broken.wait()
    assert (await a.get("/n"))[0] == b"1"
    ask(etcd, "kv/put", key=key, value=of("by hand"))
    with pytest.raises(StoreFailed, match=r"/n: etcd's key of this node has not the form that pybroker writes"):
        await store.session(TIMEOUT_MS)
    ask(etcd, "kv/deleterange", key=key)


async def test_a_watch_that_leaves_out_a_transaction_is_noticed(store: Store, a: Session) -> None:
    """The clock counts its transactions: a session that misses one loads the tree again, and its watchers learn it."""
    b: Any = await store.session(TIMEOUT_MS)
    await a.create("/n", b"0")
    assert (await b.get("/n"))[0] == b"0"
    broken = asyncio.Event()
    b.listen(lambda now: broken.set() if now is SessionState.DISCONNECTED else None)
    turn, left_out = ledger.Ledger._turn, list[object]()

    def leave_one_out(self: Any, *how: Any) -> None:
        if self._session == b.id and not left_out:
            left_out.append(how)
        else:
            turn(self, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger.Ledger, "_turn", leave_one_out)
        await a.set("/n", b"1")
        await a.set("/n", b"2")
        await broken.wait()
    assert (await b.get("/n"))[0] == b"2"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("tree/gone/child", b"0 0 0 0 0 0 0 0\n", "/gone/child: etcd has no key of this node's parent"),
        ("tree/a/../b", b"0 0 0 0 0 0 0 0\n", r"key '/a/../b' below tree/ .*must not be '..'"),
        ("tree/a//b", b"0 0 0 0 0 0 0 0\n", "must not be ''"),
        ("tree/\udcff", b"0 0 0 0 0 0 0 0\n", r"key '/\\udcff' below tree/"),
        ("tree/n", b"0 0 0 0 2147483648 0 0 0\n", "/n: etcd's key of this node has not the form"),
        ("tree/n", b"0 0 0 0 0 0 0\n", "/n: etcd's key of this node has not the form"),
        ("tree/n", b"9223372036854775808 0 0 0 0 0 0 0\n", "/n: etcd's key of this node has not the form"),
        ("tree/n", b"0 0 0 0 0 0 0 -1\n", "/n: etcd's key of this node has not the form"),
    ],
    ids=["no parent", "dots", "empty name", "binary", "version", "too few", "too large", "negative"],
)
async def test_a_tree_that_is_not_one_is_refused(store: Store, etcd: Etcd, key: str, value: bytes, reason: str) -> None:
    """Keys by another hand below tree/ that make no tree are named in one sentence at the start."""
    whole = of(f"{prefix_of(store)}/{key}")
    ask(etcd, "kv/put", key=whole, value=base64.b64encode(value).decode())
    with pytest.raises(StoreFailed, match=reason):
        await store.session(TIMEOUT_MS)
    ask(etcd, "kv/deleterange", key=whole)


async def test_a_parent_that_another_program_deletes_is_noticed(store: Store, etcd: Etcd, a: Session) -> None:
    """A session whose tree lost a node with children is disconnected, and goes on once the node is there again."""
    await a.create("/p")
    await a.create("/p/c")
    key = of(f"{prefix_of(store)}/tree/p")
    (there,) = ask(etcd, "kv/range", key=key)["kvs"]
    ask(etcd, "kv/deleterange", key=key)
    await until(a, SessionState.DISCONNECTED)
    ask(etcd, "kv/put", key=key, value=there["value"])
    assert (await a.children("/p"))[0] == ["c"]
    await a.delete("/p/c")


@pytest.mark.parametrize("below", ["d", "clock", "z"])
async def test_a_cluster_whose_prefix_is_below_another_ones(store: Store, etcd: Etcd, below: str) -> None:
    """Neither sees the other's nodes, and a read of the outer one does not carry the keys of the inner one."""
    outer: Any = await store.session(10 * TIMEOUT_MS)
    inner_store = ProxiedEtcd(etcd.servers[0].port, f"{prefix_of(store)}/{below}")
    inner = await inner_store.session(10 * TIMEOUT_MS)
    await inner.create("/n", b"inner")
    assert await outer.exists("/n") is None
    await outer.create("/n", b"outer")
    assert ((await inner.get("/n"))[0], (await outer.get("/n"))[0]) == (b"inner", b"outer")
    late = await store.session(10 * TIMEOUT_MS)
    assert (await late.get("/n"))[0] == b"outer"
    before = outer.proxy.answered_bytes
    await inner.set("/n", b"x" * 100_000)
    await eventually("the outer one's watch has it", lambda: outer.proxy.answered_bytes > before + 100_000)
    before = outer.proxy.answered_bytes
    assert (await outer.get("/n"))[0] == b"outer"
    assert outer.proxy.answered_bytes < before + 50_000
    await inner_store.close()


async def test_pages_grow_while_nodes_are_small(store: Store, a: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load takes more keys a page while nodes are small: not after large ones, and not after a load that broke."""
    monkeypatch.setattr(ledger, "PAGE_KEYS", 2)
    monkeypatch.setattr(ledger, "PAGE_BYTES", 5000)
    await asyncio.gather(*(a.create(f"/n-{n:02}", b"x" * (3000 if n in (30, 31) else 1)) for n in range(60)))
    page, limits = ledger.Ledger._page, list[int]()

    async def note(self: Any, start: bytes, end: bytes, limit: int) -> Any:
        limits.append(limit)
        if len(limits) == 3:
            raise EtcdUnanswered("it closed the connection")
        return await page(self, start, end, limit)

    monkeypatch.setattr(ledger.Ledger, "_page", note)
    b = await store.session(10 * TIMEOUT_MS)
    assert len((await b.children("/"))[0]) == 60
    assert limits[:3] == [2, 4, 8] and set(limits[3:]) == {2}
    first = len(limits)
    assert len((await (await store.session(10 * TIMEOUT_MS)).children("/"))[0]) == 60
    assert limits[first : first + 6] == [2, 4, 8, 16, 32, 2]


async def test_history_that_is_compacted_during_the_load(
    store: Store, etcd: Etcd, a: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that opens while etcd forgets the revision that it is loading begins anew, and is not refused."""
    monkeypatch.setattr(ledger, "PAGE_KEYS", 1)
    await asyncio.gather(*(a.create(f"/n-{n}") for n in range(5)))
    page, compacted = ledger.Ledger._page, list[int]()

    async def compact_first(self: Any, *how: Any) -> Any:
        if self.revision and not compacted:
            compacted.append(self.revision)
            ask(etcd, "kv/put", key=of("/other"), value="")
            at = int(ask(etcd, "kv/range", key=of("/other"))["header"]["revision"])
            ask(etcd, "kv/compaction", revision=at)
        return await page(self, *how)

    monkeypatch.setattr(ledger.Ledger, "_page", compact_first)
    b = await store.session(TIMEOUT_MS)
    assert len((await b.children("/"))[0]) == 5
    assert compacted


async def test_keys_of_others_beside_the_prefix_are_nothing_to_it(store: Store, etcd: Etcd, a: Session) -> None:
    """Writes of other programs to the same etcd neither disturb a session nor are waited for."""
    await a.create("/n")
    heard: list[object] = []
    a.listen(heard.append)
    for number in range(20):
        ask(etcd, "kv/put", key=of(f"{prefix_of(store)}-of-others/{number}"), value="")
        assert (await a.get("/n"))[0] == b""
    assert heard == []


async def test_a_store_that_went_back_in_time_is_told_apart(store: Store, etcd: Etcd) -> None:
    """A session that has seen more than its etcd has is not continued; it is given up, and the reason has numbers."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    await a.create("/n")
    await a.create("/m")
    a.disconnect()
    await until(a, SessionState.DISCONNECTED)
    assert store.give_up(a) == ""
    ask(etcd, "kv/put", key=of(f"{prefix_of(store)}/clock"), value=of("1 restored"))
    a.reconnect()
    reasons: list[str] = []

    def is_given_up() -> str:
        reasons.append(store.give_up(a))
        return reasons[-1]

    await eventually("it is given up", is_given_up)
    assert reasons[-1] == "etcd has transactions up to 1, but the session has seen 2"
    assert a.state is SessionState.EXPIRED
    assert "restored from an older copy" in await store.why()


async def test_a_store_that_went_back_and_on_again_is_recognised(store: Store, etcd: Etcd) -> None:
    """A restored etcd in which others have written since, so that it has as many transactions as the session has seen,
    is recognised by the mark of the last one; one that has forgotten that revision is not."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    b: Any = await store.session(10 * TIMEOUT_MS)
    await a.create("/n")
    for session in (a, b):
        assert await session.exists("/n")
        session.disconnect()
        await until(session, SessionState.DISCONNECTED)
    key = of(f"{prefix_of(store)}/clock")
    a.link._seen = a.link._seen._replace(mark=b"of the lost one")
    b.link._seen = b.link._seen._replace(mark=b"of the lost one")
    ask(etcd, "kv/put", key=key, value=of("9 of another"))
    a.reconnect()
    reasons: list[str] = []

    def is_given_up() -> str:
        reasons.append(store.give_up(a))
        return reasons[-1]

    await eventually("it is given up", is_given_up)
    assert reasons[-1] == "etcd has another transaction 1 than the session has seen"
    etcd.compact()
    b.reconnect()
    await until(b, SessionState.CONNECTED)
