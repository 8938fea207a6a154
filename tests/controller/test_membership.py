"""A broker's membership in a cluster: registered in each session, with its own broker epoch and lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.coordination.memory import MemorySession, MemoryStore
from pybroker.coordination.store import Session
from pybroker.decisions.image import LiveBroker
from pybroker.errors import KafkaError, StartError
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.server.cluster.membership import Membership
from tests import virtual
from tests.controller.stage import live_broker
from tests.harness import eventually
from tests.virtual import loop_ms

pytestmark = pytest.mark.virtual_time

TIMEOUT_MS = 300


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(timeouts_ms=(100, 60_000), clock_ms=loop_ms)
    await store.open()
    await prepare(await store.session(60_000))
    yield store
    await store.close()


class Member:
    """A broker that joins and records the callbacks of its membership."""

    def __init__(self, store: MemoryStore, broker_id: int = 7) -> None:
        self.broker = live_broker(broker_id)
        self.told: list[str] = []
        self.epochs: list[int] = []
        self.leases: list[int] = []
        self.looks: list[Callable[[Session], Awaitable[object]]] = []
        self.membership = Membership(
            store, TIMEOUT_MS, lambda: self.broker, wall_ms, on_session=self._look, on_lost=self._lost,
            on_registered=self._registered, on_lease=self.leases.append,
        )  # fmt: skip

    async def _look(self, session: Session) -> None:
        for look in self.looks:
            await look(session)

    async def _lost(self) -> None:
        self.told.append("lost")

    async def _registered(self, session: Session, epoch: int) -> None:
        self.told.append("registered")
        self.epochs.append(epoch)

    async def join(self) -> MemorySession:
        session = await self.membership.open()
        await self.membership.register()
        assert isinstance(session, MemorySession)
        return session

    async def end(self) -> None:
        await self.membership.close()


@pytest.fixture
async def member(store: MemoryStore) -> AsyncIterator[Member]:
    member = Member(store)
    yield member
    await member.end()


async def owner(store: MemoryStore, broker_id: int = 7) -> int:
    looking = await store.session(60_000)
    stat = await looking.exists(nodes.broker(broker_id))
    return 0 if stat is None else stat.ephemeral_owner


async def test_a_broker_is_registered_in_its_session(store: MemoryStore, member: Member) -> None:
    session = await member.join()
    assert await owner(store) == session.id
    assert member.told == ["registered"]
    assert member.epochs == [(await session.get(nodes.broker(7)))[1].czxid] == [member.membership.epoch]


async def test_a_session_that_expires_five_times(store: MemoryStore, member: Member) -> None:
    """The broker registers again each time, with a later epoch."""
    await member.join()
    for times in range(1, 6):
        session = member.membership.session
        assert isinstance(session, MemorySession)
        session.expire()
        await eventually("it is registered again", lambda times=times: len(member.epochs) == times + 1)
    assert member.told == ["registered"] + ["lost", "registered"] * 5
    assert member.epochs == sorted(set(member.epochs))
    assert member.membership.expiries == 5
    assert await owner(store) == member.membership.session.id


async def test_a_session_that_expires_while_it_starts(store: MemoryStore, member: Member) -> None:
    """The session may expire while the process is frozen: the start continues in another session."""
    await member.membership.open()
    first = member.membership.session
    tries = []

    async def work(session: Session) -> str:
        tries.append(session)
        if session is first:
            first.expire()  # type: ignore[attr-defined]
        return (await session.children("/"))[0] and "done"

    assert await member.membership.in_a_session(work) == "done"
    second = member.membership.session
    assert tries == [first, second]
    second.expire()  # type: ignore[attr-defined]
    await member.membership.register()
    assert await owner(store) == member.membership.session.id not in (first.id, second.id)


async def test_a_false_proof_of_death(store: MemoryStore, member: Member) -> None:
    """If the node of a live broker is deleted, the broker registers again in the same session."""
    session = await member.join()
    await (await store.session(60_000)).delete(nodes.broker(7))
    await eventually("it is registered again", lambda: len(member.epochs) == 2)
    assert member.told == ["registered", "registered"]
    assert await owner(store) == session.id == member.membership.session.id


async def test_a_broken_connection_is_no_end(store: MemoryStore, member: Member) -> None:
    """The watch is lost with the connection and set again with the next one."""
    session = await member.join()
    session.disconnect()
    session.reconnect()
    await (await store.session(60_000)).delete(nodes.broker(7))
    await eventually("it is registered again", lambda: len(member.epochs) == 2)
    assert (member.membership.disconnects, member.membership.expiries) == (1, 0)


async def test_its_own_ghost(store: MemoryStore, member: Member) -> None:
    """After a kill the dead process's session keeps the node for a while: the next life waits for its end."""
    ghost = await store.session(200)
    await ghost.create(nodes.broker(7), nodes.dump_broker(member.broker, 0), ephemeral=True)
    ghost.suspend()
    session = await member.join()
    assert await owner(store) == session.id


async def test_its_ghost_went_while_it_was_frozen(store: MemoryStore, member: Member) -> None:
    """A broker frozen for longer than it would wait checks the node once more before it reports another broker."""
    ghost = await store.session(200)
    await ghost.create(nodes.broker(7), nodes.dump_broker(member.broker, 0), ephemeral=True)
    ghost.suspend()
    joining = asyncio.create_task(member.join())
    await asyncio.sleep(0.05)
    virtual.stand_still(4 * TIMEOUT_MS / 1000)
    await joining
    assert await owner(store) == member.membership.session.id


async def test_another_broker_has_the_id(store: MemoryStore, member: Member) -> None:
    """The other broker is alive for longer than a leftover session, so the second refuses to start, with the reason."""
    other = await store.session(60_000)
    await other.create(nodes.broker(7), nodes.dump_broker(member.broker, 0), ephemeral=True)
    with pytest.raises(StartError, match="another broker with the id 7 is registered in this cluster"):
        await member.join()
    assert await owner(store) == other.id


def at(broker: LiveBroker, where: LiveBroker) -> LiveBroker:
    """A broker that advertises another broker's addresses."""
    return broker._replace(endpoints=where.endpoints)


async def test_another_broker_has_the_address(store: MemoryStore, member: Member) -> None:
    """Clients and the controller would always reach the other broker, so the start is refused."""
    other = await store.session(60_000)
    await other.create(nodes.broker(8), nodes.dump_broker(at(live_broker(8), member.broker), 0), ephemeral=True)
    await other.create(f"{nodes.BROKER_IDS}/x", b"", ephemeral=True)  # no broker's name
    with pytest.raises(StartError, match=r"host-7:9092 is the address of broker 8, which is registered, .*advertised"):
        await member.join()
    assert await other.exists(nodes.broker(7)) is None


async def test_two_that_start_in_one_instant_have_the_address(store: MemoryStore) -> None:
    """Neither sees the other before it registers: the second to register refuses to start, and names the first."""
    first, second = Member(store), Member(store, 8)
    second.broker = at(second.broker, first.broker)
    outcomes = await asyncio.gather(first.join(), second.join(), return_exceptions=True)
    [refused] = [each for each in outcomes if isinstance(each, BaseException)]
    last = max(first, second, key=lambda each: each.membership.epoch)
    assert isinstance(refused, StartError) and outcomes[(first, second).index(last)] is refused
    there = 8 if last is first else 7
    assert refused.message.startswith(f"host-7:9092 is the address of broker {there}, which is registered: give this")
    assert last.told == []
    await first.end()
    await second.end()


async def test_another_broker_took_the_address(
    store: MemoryStore, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker waiting for this session's end took the address: this broker registers once the other is gone."""
    await member.join()
    other = await store.session(60_000)
    await other.create(nodes.broker(8), nodes.dump_broker(at(live_broker(8), member.broker), 0), ephemeral=True)
    await other.delete(nodes.broker(7))
    await eventually("it waits", lambda: "broker waits to register" in caplog.text)
    assert await owner(store) == 0 and "host-7:9092 is the address of broker 8" in caplog.text
    await other.delete(nodes.broker(8))
    await eventually("it is registered again", lambda: len(member.epochs) == 2)


async def test_a_dead_broker_had_the_address(store: MemoryStore, member: Member) -> None:
    """When a machine gets another broker id, its earlier session ends by itself."""
    ghost = await store.session(200)
    await ghost.create(nodes.broker(8), nodes.dump_broker(at(live_broker(8), member.broker), 0), ephemeral=True)
    ghost.suspend()
    session = await member.join()
    assert await owner(store) == session.id


async def test_the_lease_runs_from_the_last_answer(store: MemoryStore, member: Member) -> None:
    """The lease moves on while the store answers, and ends before the session may expire."""
    session = await member.join()
    await eventually("it was renewed", lambda: len(member.leases) > 2)
    session.suspend()
    silent_ms = session.answered_ms
    await asyncio.sleep(TIMEOUT_MS / 1000 / 4)
    assert silent_ms < member.leases[-1] < silent_ms + TIMEOUT_MS
    assert member.leases == sorted(member.leases)
    assert member.leases[-1] <= loop_ms() + TIMEOUT_MS
    session.resume()


async def test_a_session_in_which_it_does_not_register(store: MemoryStore, member: Member) -> None:
    """If the store became another cluster's, the lease ends, and the broker checks again and again."""
    session = await member.join()
    refusing = True

    async def look(session: Session) -> None:
        member.told.append("looked")
        if refusing:
            raise KafkaError(errors.INCONSISTENT_CLUSTER_ID, "it is another cluster's")

    member.looks.append(look)
    session.expire()
    await eventually("it has looked", lambda: "looked" in member.told)
    assert await owner(store) == 0 and member.leases[-1] < loop_ms()
    refusing = False
    await eventually("it is registered again", lambda: len(member.epochs) == 2)
    await eventually("the lease goes on", lambda: member.leases[-1] > loop_ms())


async def test_a_lease_that_lapses_is_told_of(
    store: MemoryStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen ZooKeeper closes no connection, so only this log line explains why records are refused."""
    caplog.set_level("INFO", "pybroker.server.cluster.membership")
    member = Member(store)
    session = await member.join()
    caplog.clear()
    with monkeypatch.context() as frozen:
        answered_ms = session.answered_ms
        frozen.setattr(type(session), "answered_ms", property(lambda _: answered_ms))
        await eventually("it is told", lambda: caplog.messages)
        assert caplog.messages == [
            'lease lapsed cause="ZooKeeper does not answer" then="acks 0 and 1 are refused"'
        ]
    await eventually("its end is told", lambda: len(caplog.messages) == 2)
    assert caplog.messages[1] == 'lease renewed cause="ZooKeeper answers again"'
    await member.end()


async def test_a_connection_that_is_lost_is_told_of(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """The log line explains why there are no elections, and why acks=1 will be refused soon."""
    caplog.set_level("INFO", "pybroker.server.cluster.membership")
    member = Member(store)
    session = await member.join()
    caplog.clear()
    session.disconnect()
    await eventually("it is told", lambda: len(caplog.messages) == 1)
    session.reconnect()
    await eventually("its end is told", lambda: len(caplog.messages) == 2)
    lost, reached = caplog.messages
    then = "acks 0 and 1 are refused once the lease has lapsed"
    assert lost == f'store disconnected store=ZooKeeper lease_ms=270 then="{then}"'
    assert reached == "store connected store=ZooKeeper"
    await member.end()
