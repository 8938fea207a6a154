"""A broker's place in its cluster: one session of the store after another, and in each its registration.

    open ──a session──> register ──its ephemeral node is made: its czxid is the broker epoch──> member
                           ^                                                                      │
                           └── a new session, if it expired ── the node is gone, or the session ──┘

The node is gone when the session expired, when somebody proved that the process is dead, and was wrong, or when an
operator deleted it. The broker registers anew each time, under a new epoch, which fences what was meant for the old.

The lease runs from when the last answered request of the session was sent (`Session.answered_ms`): when it lapses,
others may have taken over without this broker's knowledge. Once the registration was looked at, answers renew the lease
on the session's thread (coordination/renewals.py), so a stalled event loop does not lose it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from pybroker.cluster.addresses import clash
from pybroker.cluster.image import LiveBroker
from pybroker.controller import nodes
from pybroker.coordination.commit import commit, read, until_answered
from pybroker.coordination.store import (
    ENDED,
    ConnectionLoss,
    Create,
    NodeExists,
    NoNode,
    Session,
    SessionExpired,
    SessionState,
    Set,
    Store,
    StoreError,
    StoreFailed,
    Watch,
)
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.replication.lease import LAPSED_MS, NO_MEMBER_MS
from pybroker.replication.logdirs import StartError
from pybroker.tasks import cancel_and_wait
from pybroker.upkeep import keep_up

log = logging.getLogger(__name__)

TICKS_MS_MAX = 4000
"""Two ticks of ZooKeeper's default, by which it may end a session late; two ticks are never more than a session."""
LEASE_MARGIN = 0.1
"""Of a session's timeout: clocks differ in their speed, and a check is not an append."""
LEASE_LOOKS = 12
"""How often in a session's timeout the lease is renewed."""
OWN_ADDRESS = "give this one addresses of its own (advertised.listeners, listeners), or stop that one"
RETRY_S = 1.0
WHY_S = 2.0
"""How often the reason is looked for, once ZooKeeper has not answered for as long as a lease lasts."""

T = TypeVar("T")
Registered = Callable[[Session, int], Awaitable[object]]
"""Called with the session and the broker epoch, after each registration."""


class Membership:
    """Of the broker that `current` describes, as its settings are."""

    def __init__(
        self, store: Store, timeout_ms: int, current: Callable[[], LiveBroker], wall_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._timeout_ms = timeout_ms
        self._current = current
        self._wall_ms = wall_ms
        self._look = asyncio.Event()
        self._shown: LiveBroker | None = None  # as the node has it
        self._session: Session | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.epoch = -1
        self.disconnects = self.expiries = 0
        self._registered = self._silent = False
        self._renew = asyncio.Event()
        self._unheard = asyncio.Event()  # set while the store has not answered for as long as a lease lasts
        self.on_session: list[Callable[[Session], Awaitable[object]]] = []  # told of each but the first; may refuse it
        self.on_lost: list[Callable[[], Awaitable[object]]] = []  # told when the session ended
        self.on_registered: list[Registered] = []
        self.on_lease: list[Callable[[int], object]] = []  # told until when, by the clock since boot, it is a member
        self.on_answer: list[Callable[[int], object]] = []  # called with a lease's later end, on the session's thread

    @property
    def session(self) -> Session:
        """The present one, which may have ended."""
        assert self._session is not None
        return self._session

    @property
    def connected(self) -> bool:
        """Does its session go on, as far as it knows?"""
        return self._session is not None and self._session.state is SessionState.CONNECTED and not self._silent

    @property
    def registered(self) -> bool:
        """Is it a member, as far as it knows?"""
        return self._registered

    async def open(self) -> Session:
        """The first session. Raises StoreError."""
        return await self._begin()

    async def in_a_session(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """What comes of `work`, which may be done twice: once more in a new session where one expires meanwhile, as
        that of a process does which is frozen while it starts. Raises as `work`, and StoreError."""
        while True:
            try:
                return await work(self.session)
            except ConnectionLoss:  # of what is unknown; where the session is over, the next try says so
                continue
            except SessionExpired as problem:
                event(log, logging.WARNING, "session expired at the start", reason=problem)
                await self.session.expired.wait()  # an operation may hear of it before the session's state does
                await self._begin()

    async def register(self) -> None:
        """Register the broker for the first time. Raises StartError if another broker has its id, or advertises one of
        its addresses."""
        now_s = asyncio.get_running_loop().time
        try:
            seen = await self.in_a_session(lambda _: self._own_addresses(now_s() + self._patience_s()))
            await self.in_a_session(lambda _: self._make_node(now_s() + self._patience_s()))
            await self.in_a_session(lambda _: self._came_first(seen))
        except TimeoutError:
            broker = self._current()
            raise StartError(
                f"another broker with the id {broker.id} is registered in this cluster, and has been for longer than a "
                "session lasts: stop that one, or give this one an id of its own (broker.id)"
            ) from None
        for tell in self.on_registered:
            await tell(self.session, self.epoch)
        self._registered = True
        self._tasks = [
            asyncio.create_task(keep_up(self._keep, "membership")),
            asyncio.create_task(keep_up(self._renew_lease, "lease")),
            asyncio.create_task(keep_up(self._say_why, "reasons of ZooKeeper")),
        ]

    async def renew(self) -> None:
        """Show the broker as its settings are now, if that is not how it is shown. Raises StoreError."""
        broker = self._current()
        if broker == self._shown:
            return
        with contextlib.suppress(NoNode):  # a registration that comes next shows it so
            await commit(self.session, [Set(nodes.broker(broker.id), nodes.dump_broker(broker, self._wall_ms()))])
        self._shown = broker

    async def close(self) -> None:
        """End the registration with the session; the tasks first, or they would begin anew."""
        await cancel_and_wait(*self._tasks)
        self._tasks = []

    # -- sessions and registrations ----------------------------------------------------------------------------------

    async def _begin(self) -> Session:
        session = self._session = await self._store.session(self._timeout_ms)
        session.listen(self._heard)
        return session

    def _heard(self, state: SessionState) -> None:
        self._look.set()
        self.expiries += state is SessionState.EXPIRED
        if state is SessionState.DISCONNECTED:
            self.disconnects += 1
            lease_ms = _lease_ms(self.session)
            then = "acks 0 and 1 are refused once the lease has lapsed"
            event(log, logging.WARNING, "ZooKeeper lost", lease_ms=lease_ms, then=then)
        elif state is SessionState.CONNECTED:
            event(log, logging.INFO, "ZooKeeper reached")

    def _patience_s(self) -> float:
        """How long a node that is held by another session may be that of our own life before."""
        timeout_ms = self.session.timeout_ms
        return (timeout_ms + min(timeout_ms, TICKS_MS_MAX)) / 1000

    async def _own_addresses(self, deadline_s: float | None) -> set[str]:
        """Wait until no other broker advertises an address of this one: a broker that died keeps it until its session
        ends. The brokers that were registered then. Raises StartError at the deadline, StoreError."""
        broker, waits, late = self._current(), False, False
        wanted = set(broker.endpoints.values())
        while True:
            self._look.clear()
            names = await self._names(lambda _: self._look.set())
            found = clash(broker.id, wanted, await self._shown_by(names))
            if found is None:
                return set(names)
            if late:
                raise StartError(f"{found}, and has been for longer than a session lasts: {OWN_ADDRESS}")
            if not waits:
                event(log, logging.WARNING, "broker waits to register", broker=broker.id, reason=found)
                waits = True
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._look.wait()
            except TimeoutError:
                late = True  # this process may have stood still, and the other may be gone: look once more

    async def _came_first(self, seen: Collection[str]) -> None:
        """See that no broker registered before this one, since those were `seen`, and advertises an address of it: of
        two that start in one instant neither sees the other before. Raises StartError, StoreError."""
        broker = self._current()
        others = await self._shown_by(set(await self._names()) - {*seen, str(broker.id)}, before=self.epoch)
        if found := clash(broker.id, set(broker.endpoints.values()), others):
            raise StartError(f"{found}: {OWN_ADDRESS}")

    async def _names(self, watch: Watch | None = None) -> list[str]:
        """The nodes of the brokers that are registered. Raises StoreError."""
        return (await until_answered(lambda: self.session.children(nodes.BROKER_IDS, watch=watch)))[0]

    async def _shown_by(self, names: Iterable[str], before: int | None = None) -> list[LiveBroker]:
        """Return the brokers of these nodes, or of those made `before` that czxid, but for nodes that cannot be read.
        Raises StoreError."""
        found = await asyncio.gather(*(self._shown_at(name, before) for name in names))
        return [broker for broker in found if broker is not None]

    async def _shown_at(self, name: str, before: int | None) -> LiveBroker | None:
        with contextlib.suppress(NoNode, StoreFailed):
            number = nodes.broker_id(name)
            data, stat = await read(self.session, nodes.broker(number))
            if before is None or stat.czxid < before:
                return nodes.load_broker(number, data)
        return None

    async def _make_node(self, deadline_s: float | None) -> None:
        """Make the node, once nobody else has it. Raises TimeoutError at the deadline, StoreError."""
        waits = False
        while not await self._make_once():
            if self._look.is_set():  # the other's node went while we looked
                continue
            if not waits:
                reason = "its node is held by another session, perhaps of its own life before"
                event(log, logging.WARNING, "broker waits to register", broker=self._current().id, reason=reason)
                waits = True
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._look.wait()
            except TimeoutError:
                if not await self._make_once():  # where this process stood still, it may have gone long ago
                    raise
                break
        granted = self.session.timeout_ms
        event(log, logging.INFO, "broker registered", broker=self._current().id, epoch=self.epoch, session_ms=granted)

    async def _make_once(self) -> bool:
        """Make the node; False where another session has it, and then a watch says when it goes. Raises StoreError."""
        session, broker = self.session, self._current()
        path, data = nodes.broker(broker.id), nodes.dump_broker(broker, self._wall_ms())
        nodes.load_broker(broker.id, data)  # what nobody can read would take every broker of the cluster down
        self._look.clear()
        with contextlib.suppress(NodeExists):
            await commit(session, [Create(path, data, ephemeral=True)])
        stat = await until_answered(lambda: session.exists(path, watch=lambda _: self._look.set()))
        if stat is None:
            self._look.set()
        elif stat.ephemeral_owner == session.id:
            self.epoch = stat.czxid
            self._shown = broker
            return True
        return False

    async def _keep(self) -> None:
        """Be registered, in one session after another, until it is cancelled."""
        said = ""
        while True:
            try:
                if self._registered:
                    why = await self._gone()
                    self._lapse()
                    event(log, logging.WARNING, "broker is not registered any more", epoch=self.epoch, cause=why)
                await self._register_again()
                said = ""
            except SessionExpired:
                self._lapse()
                await self.session.expired.wait()  # an operation may hear of it before the session's state does
            except (StoreError, KafkaError, OSError) as problem:
                if str(problem) != said:
                    event(log, logging.WARNING, "broker cannot register", reason=problem)
                said = str(problem)
                if isinstance(problem, KafkaError):  # do not elect in a store that does not know this cluster
                    self.session.renewals.news()
                    self._hold(LAPSED_MS)
                await asyncio.sleep(RETRY_S)

    async def _register_again(self) -> None:
        """In the session that there is, or a new one. Raises StoreError, KafkaError, OSError."""
        if self.session.state in ENDED:
            for tell in self.on_lost:
                await tell()
            await self._begin()
        for look in self.on_session:
            await look(self.session)
        await self._own_addresses(None)
        await self._make_node(None)
        for inform in self.on_registered:
            await inform(self.session, self.epoch)
        self._registered = True
        self._renew.set()

    def _lapse(self) -> None:
        """Nobody knows this broker any more: others may lead what it leads."""
        self._registered = False
        self.session.renewals.news()
        self._hold(NO_MEMBER_MS)

    def _hold(self, until_ms: int) -> None:
        for tell in self.on_lease:
            tell(until_ms)

    def _prolong(self, session: Session, sent_ms: int) -> None:
        """Extend the lease; called on the session's thread."""
        for tell in self.on_answer:
            tell(sent_ms + _lease_ms(session))

    async def _gone(self) -> str:
        """Wait until the node is gone; why."""
        path = nodes.broker(self._current().id)
        while True:
            self._look.clear()
            session = self.session
            if session.state in ENDED:
                return "its session has expired"
            since = session.renewals.look(path)
            try:
                stat = await session.exists(path, watch=lambda _: self._look.set())
            except ConnectionLoss:
                continue
            except SessionExpired:
                await session.expired.wait()
                continue
            if stat is None or stat.czxid != self.epoch:
                return "its node was deleted"
            session.renewals.keep(since, partial(self._prolong, session))
            self._renew.set()
            await self._look.wait()

    async def _renew_lease(self) -> None:
        """Tell until when the session is alive for certain, as often as that moves."""
        now_s = asyncio.get_running_loop().time
        told, moved_s = -1, now_s()
        answered_ms, heard_s = -1, now_s()
        while True:
            session = self.session
            self._renew.clear()
            lease_ms = _lease_ms(session)
            until_ms = session.answered_ms + lease_ms
            if session.answered_ms != answered_ms:
                answered_ms, heard_s = session.answered_ms, now_s()
                self._unheard.clear()
            elif now_s() - heard_s > lease_ms / 1000:
                self._unheard.set()
            if self._registered and session.state not in ENDED and session.renewals.are_due and until_ms != told:
                told, moved_s = until_ms, now_s()
                self._hold(until_ms)
                if self._silent:
                    event(log, logging.INFO, "lease renewed", cause="ZooKeeper answers again")
                self._silent = False
            elif self._registered and not self._silent and now_s() - moved_s > lease_ms / 1000:
                # One that is frozen closes no connection, and nothing else tells of it.
                then = "acks 0 and 1 are refused"
                event(log, logging.WARNING, "lease lapsed", cause="ZooKeeper does not answer", then=then)
                self._silent = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(session.timeout_ms / 1000 / LEASE_LOOKS):
                    await self._renew.wait()
                    told, moved_s = -1, now_s()

    async def _say_why(self) -> None:
        """While ZooKeeper does not answer, log the reason, and begin a new session if the old one can never continue.

        A task of its own, because it may wait for a name resolver, and the lease must not wait."""
        now_s = asyncio.get_running_loop().time
        while True:
            await self._unheard.wait()
            said = ""
            while self._unheard.is_set():
                began_s = now_s()
                if (why := await self._store.why()) and why != said:
                    event(log, logging.WARNING, "ZooKeeper not reached", reason=why)
                    said = why
                if why := self._store.give_up(self.session):
                    cause = f"{why}: it was restored from an older copy, or is another one"
                    event(log, logging.WARNING, "session given up", cause=cause, then="a new one begins")
                await asyncio.sleep(max(WHY_S, now_s() - began_s))  # a server that is slow is asked less often


def _lease_ms(session: Session) -> int:
    """Ms for which a session is certainly alive after an answered request was sent."""
    return int(session.timeout_ms * (1 - LEASE_MARGIN))
