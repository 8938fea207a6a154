"""Keeps a broker registered in its cluster, through successive sessions of the store.

    open ──a session──> register ──its ephemeral node is created: its czxid is the broker epoch──> member
                           ^                                                                         │
                           └── a new session, if it expired ── the node or the session is gone ──────┘.

The node is gone if the session expired, if another broker wrongly concluded that this process is dead, or if an
operator deleted it. Each time the broker registers again under a new epoch, which fences requests with the old one.

The lease runs from the time at which the last answered request of the session was sent (`Session.answered_ms`). Once it
lapses, other brokers may have taken over without this broker's knowledge. After the registration was checked, responses
renew the lease on the session's thread (coordination/renewals.py), so a stalled event loop does not lose it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

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
from pybroker.decisions.addresses import clash
from pybroker.decisions.image import LiveBroker
from pybroker.errors import KafkaError, StartError
from pybroker.histogram import Times
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.replication.lease import LAPSED_MS, NO_MEMBER_MS
from pybroker.retries import keep_up
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

TICKS_MS_MAX = 4000
"""ZooKeeper may expire a session up to two ticks late: 4 s by default, and never more than the session timeout."""
LEASE_MARGIN = 0.1
"""Fraction of the session timeout by which the lease is shorter: clocks drift, and appends follow their check."""
LEASE_LOOKS = 12
"""Renewals of the lease within a session timeout."""
OWN_ADDRESS = "give this broker other addresses (advertised.listeners, listeners), or stop the other broker"
RETRY_S = 1.0
WHY_S = 2.0
"""Interval of checks why ZooKeeper does not respond, once it has not for the time of a lease."""

T = TypeVar("T")
Registered = Callable[[Session, int], Awaitable[object]]
"""Called with the session and the broker epoch, after each registration."""


async def nothing(*told: object) -> None:
    """Do nothing."""


class Membership:
    """The membership of the broker that `current` returns, by its current settings."""

    def __init__(
        self,
        store: Store,
        timeout_ms: int,
        current: Callable[[], LiveBroker],
        wall_ms: Callable[[], int],
        *,
        on_session: Callable[[Session], Awaitable[object]] = nothing,
        on_lost: Callable[[], Awaitable[object]] = nothing,
        on_registered: Registered = nothing,
        on_lease: Callable[[int], object] = lambda until_ms: None,
        on_answer: Callable[[int], object] = lambda until_ms: None,
    ) -> None:
        """`on_session` is awaited with each session but the first, and may reject it by raising; `on_lost` when a
        session has ended. `on_lease` is called with the time, on the boot clock, until which this broker is a member;
        `on_answer` with a later end of the lease, on the session's thread."""
        self._on_session, self._on_lost, self._on_registered = on_session, on_lost, on_registered
        self._on_lease, self._on_answer = on_lease, on_answer
        self._store = store
        self._timeout_ms = timeout_ms
        self._current = current
        self._wall_ms = wall_ms
        self._look = asyncio.Event()
        self._shown: LiveBroker | None = None  # the content of the node
        self._session: Session | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.epoch = -1
        self.disconnects = self.expiries = 0
        self.store_times = Times()
        self._registered = self._silent = False
        self._renew = asyncio.Event()
        self._unheard = asyncio.Event()  # set while the store has not responded for the time of a lease

    @property
    def session(self) -> Session:
        """The current session, which may have ended."""
        assert self._session is not None
        return self._session

    @property
    def has_session(self) -> bool:
        """True once the first session has begun."""
        return self._session is not None

    @property
    def connected(self) -> bool:
        """True if the session is alive, as far as this broker knows."""
        return self._session is not None and self._session.state is SessionState.CONNECTED and not self._silent

    @property
    def registered(self) -> bool:
        """True if the broker is registered, as far as it knows."""
        return self._registered

    async def open(self) -> Session:
        """Begin the first session. Raises StoreError."""
        return await self._begin()

    async def in_a_session(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Return the result of `work`, which is done again in a new session if its session expires, as it does if the
        process is frozen during the start. Raises as `work`, and StoreError."""
        while True:
            try:
                return await work(self.session)
            except ConnectionLoss:  # retry; if the session is over the next attempt raises SessionExpired
                continue
            except SessionExpired as problem:
                event(log, logging.WARNING, "session expired at the start", reason=problem)
                await self.session.expired.wait()  # an operation may fail before the session's state changes
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
                "session lasts: stop the other broker, or give this one another broker.id"
            ) from None
        await self._on_registered(self.session, self.epoch)
        self._registered = True
        self._tasks = [
            asyncio.create_task(keep_up(self._keep, "membership")),
            asyncio.create_task(keep_up(self._renew_lease, "lease")),
            asyncio.create_task(keep_up(self._say_why, "reasons of the store")),
        ]

    async def renew(self) -> None:
        """Update the registration if the settings have changed it. Raises StoreError."""
        broker = self._current()
        if broker == self._shown:
            return
        with contextlib.suppress(NoNode):  # the next registration will have the new settings
            await commit(self.session, [Set(nodes.broker(broker.id), nodes.dump_broker(broker, self._wall_ms()))])
        self._shown = broker

    async def close(self) -> None:
        """Stop the tasks, which would register again; the registration ends with the session."""
        await cancel_and_wait(*self._tasks)
        self._tasks = []

    # -- sessions and registrations ----------------------------------------------------------------------------------

    async def _begin(self) -> Session:
        session = self._session = await self._store.session(self._timeout_ms)
        session.times = self.store_times
        session.listen(self._heard)
        return session

    def _heard(self, state: SessionState) -> None:
        self._look.set()
        self.expiries += state is SessionState.EXPIRED
        if state is SessionState.DISCONNECTED:
            self.disconnects += 1
            lease_ms = _lease_ms(self.session)
            then = "acks 0 and 1 are refused once the lease has lapsed"
            event(log, logging.WARNING, "store disconnected", store=self._store.name, lease_ms=lease_ms, then=then)
        elif state is SessionState.CONNECTED:
            event(log, logging.INFO, "store connected", store=self._store.name)

    def _patience_s(self) -> float:
        """Seconds for which a node of another session may be left over from an earlier run of this broker."""
        timeout_ms = self.session.timeout_ms
        return (timeout_ms + min(timeout_ms, TICKS_MS_MAX)) / 1000

    async def _own_addresses(self, deadline_s: float | None) -> set[str]:
        """Wait until no other broker advertises an address of this one; a dead broker does until its session expires.
        Return the names of registered brokers. Raises StartError at the deadline, StoreError."""
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
                late = True  # check once more: this process may have been frozen, and the other broker gone

    async def _came_first(self, seen: Collection[str]) -> None:
        """Check that no broker with an address of this one registered between `_own_addresses`, which returned `seen`,
        and this broker's registration, as two brokers may start at once. Raises StartError, StoreError."""
        broker = self._current()
        others = await self._shown_by(set(await self._names()) - {*seen, str(broker.id)}, before=self.epoch)
        if found := clash(broker.id, set(broker.endpoints.values()), others):
            raise StartError(f"{found}: {OWN_ADDRESS}")

    async def _names(self, watch: Watch | None = None) -> list[str]:
        """The names of the nodes of registered brokers. Raises StoreError."""
        return (await until_answered(lambda: self.session.children(nodes.BROKER_IDS, watch=watch)))[0]

    async def _shown_by(self, names: Iterable[str], before: int | None = None) -> list[LiveBroker]:
        """Return the brokers in these nodes, or in those created `before` that czxid; unreadable nodes are skipped.
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
        """Create the node, once no other session holds it. Raises TimeoutError at the deadline, StoreError."""
        waits = False
        while not await self._make_once():
            if self._look.is_set():  # the other session's node was deleted meanwhile
                continue
            if not waits:
                reason = "another session holds its node, perhaps of an earlier run of this broker"
                event(log, logging.WARNING, "broker waits to register", broker=self._current().id, reason=reason)
                waits = True
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._look.wait()
            except TimeoutError:
                if not await self._make_once():  # if this process was frozen the node may be gone
                    raise
                break
        granted = self.session.timeout_ms
        event(log, logging.INFO, "broker registered", broker=self._current().id, epoch=self.epoch, session_ms=granted)

    async def _make_once(self) -> bool:
        """Create the node. If another session holds it return False, and set `_look` when it is deleted. Raises
        StoreError."""
        session, broker = self.session, self._current()
        path, data = nodes.broker(broker.id), nodes.dump_broker(broker, self._wall_ms())
        nodes.load_broker(broker.id, data)  # an unreadable node would break every broker of the cluster
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
        """Keep the broker registered, through successive sessions, until cancelled."""
        said = ""
        while True:
            try:
                if self._registered:
                    why = await self._gone()
                    self._lapse()
                    event(log, logging.WARNING, "broker registration lost", epoch=self.epoch, cause=why)
                await self._register_again()
                said = ""
            except SessionExpired:
                self._lapse()
                await self.session.expired.wait()  # an operation may fail before the session's state changes
            except (StoreError, KafkaError, OSError) as problem:
                if str(problem) != said:
                    event(log, logging.WARNING, "broker registration failed", reason=problem)
                said = str(problem)
                if isinstance(problem, KafkaError):  # do not elect in a store that does not know this cluster
                    self.session.renewals.news()
                    self._hold(LAPSED_MS)
                await asyncio.sleep(RETRY_S)

    async def _register_again(self) -> None:
        """Register in the current session, or in a new one. Raises StoreError, KafkaError, OSError."""
        if self.session.state in ENDED:
            await self._on_lost()
            await self._begin()
        await self._on_session(self.session)
        await self._own_addresses(None)
        await self._make_node(None)
        await self._on_registered(self.session, self.epoch)
        self._registered = True
        self._renew.set()

    def _lapse(self) -> None:
        """Let the lease lapse, as the broker is no longer registered and others may lead its partitions."""
        self._registered = False
        self.session.renewals.news()
        self._hold(NO_MEMBER_MS)

    def _hold(self, until_ms: int) -> None:
        self._on_lease(until_ms)

    def _prolong(self, session: Session, sent_ms: int) -> None:
        """Extend the lease; called on the session's thread."""
        self._on_answer(sent_ms + _lease_ms(session))

    async def _gone(self) -> str:
        """Wait until the node is gone, and return why."""
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
        """Report until when the session is certainly alive, whenever that changes."""
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
                    event(log, logging.INFO, "lease renewed", cause=f"{self._store.name} answers again")
                self._silent = False
            elif self._registered and not self._silent and now_s() - moved_s > lease_ms / 1000:
                # A frozen ZooKeeper closes no connection, so nothing else logs this.
                then = "acks 0 and 1 are refused"
                cause = f"{self._store.name} does not answer"
                event(log, logging.WARNING, "lease lapsed", cause=cause, then=then)
                self._silent = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(session.timeout_ms / 1000 / LEASE_LOOKS):
                    await self._renew.wait()
                    told, moved_s = -1, now_s()

    async def _say_why(self) -> None:
        """While ZooKeeper does not respond, log the reason, and give up a session that can never continue.

        This is a separate task because it may wait for a name resolver, and the lease must not wait."""
        now_s = asyncio.get_running_loop().time
        while True:
            await self._unheard.wait()
            said = ""
            while self._unheard.is_set():
                began_s = now_s()
                if (why := await self._store.why()) and why != said:
                    event(log, logging.WARNING, "store not reached", store=self._store.name, reason=why)
                    said = why
                if why := self._store.give_up(self.session):
                    cause = f"{why}: {self._store.name} was restored from an older copy, or is another one"
                    event(log, logging.WARNING, "session given up", cause=cause, then="begins a new session")
                await asyncio.sleep(max(WHY_S, now_s() - began_s))  # ask a slow server less often


def _lease_ms(session: Session) -> int:
    """Milliseconds for which a session is certainly alive after an answered request was sent."""
    return int(session.timeout_ms * (1 - LEASE_MARGIN))
