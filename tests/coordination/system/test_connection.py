"""Sessions of every store report their connection's state and the outcome of operations that lost the connection."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS

from pybroker.clock import boot_ms
from pybroker.coordination.etcd.session import EtcdSession
from pybroker.coordination.memory import Fate
from pybroker.coordination.store import (
    BadArguments,
    ConnectionLoss,
    Create,
    NoNode,
    Session,
    SessionExpired,
    SessionState,
    Set,
    StoreError,
    WatchEvent,
)
from pybroker.coordination.zookeeper import ZooKeeperStore
from pybroker.coordination.zookeeper_session import ZooKeeperSession, _translated
from pybroker.development.zookeeper_server import ZooKeeper
from tests.coordination.conftest import ETCD, TIMEOUT_MS, ZOOKEEPER
from tests.coordination.proxied_store import close_from_elsewhere

CONNECTED, DISCONNECTED, EXPIRED, CLOSED = SessionState
AWAY_MS = 50


def heard(session: Session) -> list[SessionState]:
    """The list of states that the session enters from now on."""
    states: list[SessionState] = []
    session.listen(states.append)
    return states


async def until(session: Session, state: SessionState) -> None:
    """Wait until the session enters a state."""
    come = asyncio.Event()
    session.listen(lambda now: come.set() if now is state else None)
    if session.state is not state:
        await asyncio.wait_for(come.wait(), 10)


async def pass_ms(other: Session, much_ms: int) -> None:
    """Let time pass while another session gets answers."""
    began = boot_ms()
    while boot_ms() < began + much_ms:
        await other.exists("/")


# -- states, of every store -------------------------------------------------------------------------------------------


async def test_a_session_is_connected_until_it_is_closed(a: Session) -> None:
    states = heard(a)
    await a.create("/n")
    assert a.state is CONNECTED
    await a.close()
    await a.close()
    assert a.state is CLOSED
    assert states == [CLOSED]


async def test_a_session_that_the_store_ended_says_so(a: Session, b: Session) -> None:
    states = heard(b)
    await b.create("/brief", ephemeral=True)
    b.expire()  # type: ignore[attr-defined]
    await b.expired.wait()
    assert states[-1] is b.state is EXPIRED
    assert await a.exists("/brief") is None
    await b.close()
    assert b.state is EXPIRED, "an ended session stays ended"


async def test_a_listener_that_fails_costs_the_others_nothing(a: Session) -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))

    def broken(state: SessionState) -> None:
        raise ZeroDivisionError

    a.listen(broken)
    states = heard(a)
    await a.close()
    assert states == [CLOSED]
    assert said[0]["message"] == "a listener failed on CLOSED"


async def renewed(session: Session, since_ms: int) -> None:
    """Wait for the answer to an operation; on etcd, to a keep-alive that was sent since then."""
    await session.exists("/")
    while isinstance(session, EtcdSession) and session.answered_ms < since_ms:
        await session.exists("/")


async def test_the_last_answer_is_of_when_its_request_was_sent(a: Session, b: Session) -> None:
    """answered_ms lies between the call and the answer, and moves on with the next answer."""
    for _ in range(2):
        sent_ms = boot_ms()
        await renewed(a, sent_ms)
        assert sent_ms <= a.answered_ms <= boot_ms()
        await pass_ms(b, 2)


async def test_a_session_that_nobody_uses_asks_by_itself(a: Session, b: Session) -> None:
    began_ms = boot_ms()
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while a.answered_ms <= began_ms:
            await pass_ms(b, 1)


async def test_silence_is_no_answer(a: Any, b: Session) -> None:
    """Without answers answered_ms stays, though the connection is not known to be broken."""
    states = heard(a)
    a.suspend()
    silent_ms = boot_ms()
    asked = a.exists("/")
    await pass_ms(b, AWAY_MS)
    assert a.answered_ms <= silent_ms
    assert not asked.done()
    a.resume()
    await asked
    assert (a.state, states) == (CONNECTED, [])
    await renewed(a, silent_ms + AWAY_MS)
    assert a.answered_ms >= silent_ms + AWAY_MS


# -- losing a connection, of stores that can --------------------------------------------------------------------------


loses = pytest.mark.parametrize("store", ["memory", ZOOKEEPER, ETCD], indirect=True)
fates = pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER], ids=["before", "after"])


def lose_next(session: Any, fate: Fate) -> None:
    """Lose the next operation and its connection."""
    to_come = iter([fate])
    session.fate = lambda: next(to_come, Fate.ANSWERED)


async def again(session: Any) -> None:
    """Let the session reach the store again."""
    session.reconnect()
    await until(session, CONNECTED)


WRITES = {
    "create": lambda session: session.create("/new"),
    "set": lambda session: session.set("/n", b"new", 0),
    "delete": lambda session: session.delete("/old"),
    "multi": lambda session: session.multi([Set("/n", b"new", 0), Create("/new")]),
}


@pytest.mark.parametrize("store", [ZOOKEEPER], indirect=True)
async def test_more_than_a_request_holds_is_refused(a: Session) -> None:
    """A request above the size limit is refused, as ZooKeeper would close each connection that sends it."""
    states = heard(a)
    with pytest.raises(BadArguments, match="a request holds 1040000 bytes, and this one has 1200"):
        await a.multi([Create(f"/{n}", b"x" * 600_000) for n in range(2)])
    await a.multi([Create(f"/{n}", b"x" * 500_000) for n in range(2)])
    assert states == []


@loses
@fates
@pytest.mark.parametrize("write", WRITES)
async def test_a_write_whose_connection_breaks_may_have_taken_effect(
    a: Any, b: Session, fate: Fate, write: str
) -> None:
    """A write whose connection breaks raises ConnectionLoss, and may or may not have taken effect."""
    await a.create("/n")
    await a.create("/old")
    lose_next(a, fate)
    with pytest.raises(ConnectionLoss):
        await WRITES[write](a)
    assert a.state is DISCONNECTED
    there = [await b.exists(path) for path in ("/n", "/old", "/new")]
    done = {"create": there[2], "delete": not there[1], "set": there[0].version, "multi": there[2]}[write]  # type: ignore[union-attr]
    assert bool(done) is (fate is Fate.LOST_AFTER)
    await again(a)
    assert [await a.exists(path) for path in ("/n", "/old", "/new")] == there


@loses
@fates
async def test_a_listener_hears_before_an_operation_fails(a: Any, fate: Fate) -> None:
    states = heard(a)
    lose_next(a, fate)
    with pytest.raises(ConnectionLoss):
        await a.create("/n")
    assert states == [DISCONNECTED]
    await again(a)
    assert states == [DISCONNECTED, CONNECTED]


@pytest.mark.parametrize("store", ["memory", ZOOKEEPER], indirect=True)  # on etcd they may share a transaction
@fates
async def test_what_was_sent_behind_is_lost_with_it(a: Any, b: Session, fate: Fate) -> None:
    """Operations sent behind one that loses its connection have no effect; those before it are answered."""
    await a.create("/n")
    fates = iter([Fate.ANSWERED, fate])
    a.fate = lambda: next(fates)
    before, lost, *behind = [a.set("/n", b"1"), a.set("/n", b"2"), a.set("/n", b"3"), a.get("/n"), a.create("/new")]
    assert (await before).version == 1
    for future in (lost, *behind):
        with pytest.raises(ConnectionLoss):
            await future
    assert (await b.get("/n"))[0] == (b"2" if fate is Fate.LOST_AFTER else b"1")
    assert await b.exists("/new") is None


@loses
async def test_what_is_submitted_without_a_connection_waits_for_the_next(a: Any, b: Session) -> None:
    await a.create("/n")
    a.disconnect()
    await until(a, DISCONNECTED)
    waiting = [a.set("/n", b"1"), a.get("/n"), a.create("/new")]
    await pass_ms(b, 1)
    assert not any(future.done() for future in waiting)
    await again(a)
    assert (await waiting[1])[0] == b"1"
    assert (await waiting[2])[0] == "/new"


@loses
async def test_watches_are_forgotten_with_the_connection(a: Any, b: Session) -> None:
    """Watches are lost with the connection; the watcher is notified of that, and reads again."""
    await a.create("/n")
    events: list[WatchEvent] = []
    await a.get("/n", watch=events.append)
    await a.children("/", watch=events.append)
    a.disconnect()
    await until(a, DISCONNECTED)
    await again(a)
    await b.set("/n", b"1")
    await b.create("/new")
    assert (await a.get("/n"))[0] == b"1"
    assert events == []
    await a.get("/n", watch=events.append)
    await a.set("/n", b"2")
    assert len(events) == 1


@loses
async def test_a_session_outlives_its_connection(a: Any, b: Session) -> None:
    """A session and its ephemeral nodes outlive a broken connection."""
    await a.create("/brief", ephemeral=True)
    a.disconnect()
    await until(a, DISCONNECTED)
    assert await b.exists("/brief")
    await again(a)
    _, stat = await a.create("/other", ephemeral=True)
    assert stat.ephemeral_owner == a.id == (await b.exists("/brief")).ephemeral_owner  # type: ignore[union-attr]


@loses
async def test_a_session_hears_of_its_end_when_it_is_connected_again(a: Any, b: Session) -> None:
    """A session learns of its expiry when it reconnects, and what it submitted in between has no effect."""
    await a.create("/brief", ephemeral=True)
    a.disconnect()
    await until(a, DISCONNECTED)
    waiting = a.create("/new")
    a.expire()
    assert await b.exists("/brief") is None
    assert (a.state, a.expired.is_set()) == (DISCONNECTED, False)
    states = heard(a)
    a.reconnect()
    with pytest.raises(SessionExpired):
        await waiting
    assert states == [EXPIRED]
    assert a.expired.is_set()
    with pytest.raises(SessionExpired):
        await a.get("/")
    assert await b.exists("/new") is None


@loses
async def test_a_silence_may_end_with_a_broken_connection(a: Any, b: Session) -> None:
    await a.exists("/")
    a.suspend()
    silent_ms = boot_ms()
    unheard = a.create("/new")
    await pass_ms(b, AWAY_MS)
    a.disconnect()
    with pytest.raises(ConnectionLoss):
        await unheard
    assert a.answered_ms <= silent_ms
    assert await b.exists("/new") is None
    await again(a)
    await renewed(a, silent_ms + AWAY_MS)
    assert a.answered_ms >= silent_ms + AWAY_MS


@loses
async def test_closing_ends_what_waits_for_a_connection(a: Any, b: Session) -> None:
    a.disconnect()
    await until(a, DISCONNECTED)
    waiting = a.create("/new")
    await a.close()
    with pytest.raises((SessionExpired, ConnectionLoss)):
        await waiting
    assert a.state is CLOSED
    assert await b.exists("/new") is None
    with pytest.raises(NoNode):
        await b.get("/new")


@pytest.mark.java
@pytest.mark.xdist_group("zookeeper")
@pytest.mark.zookeeper("its versions and requests")
@pytest.mark.parametrize(
    ("said", "many"),
    [("Zookeeper version: 3.5.9-83df9301aa5c, built on 01/06/2021", 0), ("srvr is not executed", 0), (None, 1)],
)
async def test_how_a_server_is_asked_for_many_nodes(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch, said: str | None, many: int
) -> None:
    """Many reads go in one MultiRead only to a server that reports support; an older one would end the session."""
    asked: list[str] = []
    if said is not None:
        monkeypatch.setattr(KazooClient, "command", lambda client, command: said)
    store = ZooKeeperStore(zookeeper.connect)
    session = await store.session(TIMEOUT_MS)
    call = session._client._call
    monkeypatch.setattr(session._client, "_call", lambda *sent: (asked.append(type(sent[0]).__name__), call(*sent))[1])
    (root, _), none = await asyncio.gather(session.get("/"), session.get("/none"), return_exceptions=True)
    assert root == b"" and isinstance(none, NoNode)
    assert [name for name in asked if name != "Exists"] == (["MultiRead"] if many else ["GetData", "GetData"])
    await store.close()


@pytest.mark.parametrize("code", [code for code in EXCEPTIONS if code])
def test_whatever_zookeeper_answers_is_an_error_of_a_store(code: int) -> None:
    """Each error of ZooKeeper, also of ACLs and quotas, is a StoreError, so that a registration is retried."""
    problem = _translated(EXCEPTIONS[code](), "/n")
    assert isinstance(problem, StoreError) and "/n" in str(problem)


@pytest.mark.parametrize("store", [ZOOKEEPER], indirect=True)
async def test_nobody_waits_to_ask_while_zookeeper_is_away(a: Any) -> None:
    """Submitting many operations while ZooKeeper is away does not block; they are answered when it is back."""
    a.disconnect()
    await until(a, DISCONNECTED)
    began_s = time.monotonic()
    guard = threading.Timer(5, a._client._connection._write_sock.close)  # wakes a blocked writer
    guard.start()
    asked = [a.exists("/") for _ in range(2000)]
    guard.cancel()
    assert time.monotonic() - began_s < 5
    a.reconnect()
    assert all(found is not None for found in await asyncio.gather(*asked))


@pytest.mark.java
@pytest.mark.xdist_group("zookeeper")
@pytest.mark.zookeeper("a session with etcd creates no chroot")
@pytest.mark.parametrize("times", [2, 3])
async def test_a_chroot_is_made_though_sessions_expire(zookeeper: ZooKeeper, times: int) -> None:
    """The chroot is created in another session if one expires during the start, up to a limit."""

    class Expiring(ZooKeeperStore):
        left = times

        async def _reach(self, hosts: str, timeout_ms: int) -> ZooKeeperSession:
            session = await super()._reach(hosts, timeout_ms)
            if self.left:
                self.left -= 1
                await asyncio.to_thread(close_from_elsewhere, zookeeper.connect, session._client.client_id)
                await session.expired.wait()
            return session

    store = Expiring(f"{zookeeper.connect}/{time.monotonic_ns()}/kafka")
    if times == 2:
        await store.open()
        assert await (await store.session(TIMEOUT_MS)).exists("/")
    else:
        with pytest.raises(SessionExpired):
            await store.open()
    await store.close()
