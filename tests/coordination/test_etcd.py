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
from pybroker.coordination.etcd import ledger
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
    return base64.b64encode(key.encode()).decode()


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


async def test_many_operations_cost_few_transactions(store: Store, etcd: Etcd, a: Session) -> None:
    """A thousand pipelined operations take effect in the order of the calls, in at most twenty transactions."""
    await a.create("/p")
    before = ask(etcd, "kv/range", key=of("/none"))["header"]["revision"]
    await asyncio.gather(*(a.create("/p/n-", sequential=True) for _ in range(1000)))
    after = ask(etcd, "kv/range", key=of("/none"))["header"]["revision"]
    assert 0 < int(after) - int(before) <= 20
    assert len((await a.children("/p"))[0]) == 1000


async def test_a_transaction_up_to_the_limit(a: Session) -> None:
    """A multi changes CHANGES_MAX nodes, its parent among them; one more is refused, and nothing is done."""
    await a.create("/p")
    most: list[Op] = [Create(f"/p/{n}") for n in range(ledger.CHANGES_MAX - 1)]
    with pytest.raises(StoreFailed, match=f"at most {ledger.CHANGES_MAX} nodes, and this one changes 4001"):
        await a.multi([*most, Create("/p/one-more")])
    assert (await a.children("/p"))[0] == []
    await a.multi(most)
    assert len((await a.children("/p"))[0]) == len(most)
    await a.multi([Delete(op.path) for op in most])


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


async def test_a_lost_transaction_that_arrives_while_the_session_goes_on(store: Store, etcd: Etcd, b: Session) -> None:
    """A transaction that takes effect just before the one that fences it is not taken for that one: the session has
    its changes. Both are the first ones of their connections."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    await b.create("/n", b"old")
    fates = iter([Fate.LOST_BEFORE])
    a.fate = lambda: next(fates, Fate.ANSWERED)
    with pytest.raises(ConnectionLoss):
        await a.set("/n", b"late")
    arrived: list[object] = []

    def arrive() -> Fate:
        if not arrived:
            late = a.proxy.kept.partition(b"\r\n\r\n")[2]
            arrived.append(ask(etcd, "kv/txn", **json.loads(late)).get("succeeded"))
        return Fate.ANSWERED

    a.fate = arrive
    a.reconnect()
    assert (await a.get("/n"))[0] == (await b.get("/n"))[0] == b"late"
    assert arrived == [True]


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
