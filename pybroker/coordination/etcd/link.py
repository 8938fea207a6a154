"""A session's connection to etcd, on a thread of its own: a lease that is kept, and the servers in turn.

    joining --> following --> serving --the connection breaks--> joining, at the next server
                                |--the session's key is gone--> its nodes are deleted, EXPIRED
                                |--close--> its nodes are deleted, its lease revoked

Joining: log in, take a lease or keep it alive, load the tree. The thread keeps the lease while the event loop is
stalled. An answered keep-alive renews the lease of a leader once the replica has all transactions up to that time: the
end of a registration is noted before.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pybroker.clock import boot_ms
from pybroker.coordination.local import Outcome
from pybroker.coordination.renewals import Renewals
from pybroker.coordination.store import (
    ConnectionLoss,
    SessionExpired,
    SessionState,
    StoreError,
    StoreFailed,
    StoreRefused,
    WatchEvent,
)
from pybroker.coordination.tls_words import tls_words
from pybroker.coordination.tree_session import StoreJob
from pybroker.errors import system_words
from pybroker.logs import event
from pybroker.model import HostPort
from pybroker.tasks import cancel_and_wait

from .gateway import EtcdAccess, EtcdRefusal, Gateway, number, part, put
from .http import EtcdUnanswered
from .ledger import Hears, Keys, Ledger, Seen

log = logging.getLogger(__name__)

ASKS: Final = 6
"""Keep-alives in one session timeout."""
SILENT_SHARE: Final = 1 / 3
"""A server that has not answered for this share of the session timeout is left for the next one, which may have to wait
for an election. The time doubles with each round in which no server answered so soon: all of them may be slow."""
PATIENCE_S_MAX: Final = 10.0
"""The time grows up to this, or up to its share if that is longer."""
BATCH_JOBS_MAX: Final = 4096
TTL_S_MAX: Final = 9_000_000_000
"""etcd's limit for the time of a lease."""
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 1.0
"""The pause after an attempt at each of the servers; it doubles, as a login costs etcd much."""
RETRY_S: Final = 1.0
"""The pause between attempts to delete the nodes of a session that ended, while etcd refuses writes."""


class Servers(NamedTuple):
    """The servers of one etcd, and how a cluster is kept there."""

    addresses: Sequence[HostPort]
    prefix: str = ""
    access: EtcdAccess = EtcdAccess()


class LinkListeners(NamedTuple):
    """The calls with what a link learns; on the event loop, in order."""

    opened: Callable[[int, int], object]
    """Called at the first connection, with the session's id and its timeout in milliseconds."""
    refused: Callable[[StoreError], object]
    """Called if the session cannot be opened."""
    state: Callable[[SessionState], object]
    outcomes: Callable[[list[Outcome]], object]
    events: Callable[[list[WatchEvent]], object]
    ended: Callable[[], object]
    """Called last."""


class EtcdLink:
    """The thread of a session. Its public methods are called on the event loop."""

    def __init__(self, servers: Servers, timeout_ms: int, renewals: Renewals, listeners: LinkListeners) -> None:
        self._loop = asyncio.get_running_loop()
        self._inner = asyncio.new_event_loop()
        self._servers = servers
        self._keys = Keys(servers.prefix)
        self._renewals = renewals
        self._listeners = listeners
        self._timeout_s = timeout_ms / 1000
        self._pause_s = PAUSE_S
        self._slow_rounds = 0
        """Rounds since an answer came in its share of the session timeout."""
        self._loads = True
        """False after a load that did not end: the next one is by small pages."""
        self._number = 0
        self._marks = itertools.count(1)
        self._posted: deque[tuple[int, StoreJob]] = deque()
        """Jobs from the event loop, each with the number of connections that had broken when it was submitted."""
        self._posting = False
        """True from the first job of a turn of the event loop to the end of that turn."""
        self._jobs: deque[tuple[int, StoreJob]] = deque()
        self._batch: list[StoreJob] = []
        self._dead: set[int] = set()
        """Sessions that ended, and whose nodes are to be deleted."""
        self._breaks = 0
        self._opened = self._connected = self._closing = self._over = False
        self._unsure = -1
        """The revision of the clock for a transaction that was sent, and whose outcome is unknown."""
        self._seen = Seen()
        self.reasons: dict[HostPort, str] = {}
        """Why each server that was tried since the last connection is not connected."""
        self.went_back = ""
        """Why no server continues this session."""

    def start(self) -> None:
        """Start the thread. Raises RuntimeError."""
        threading.Thread(target=self._run, name="pybroker-etcd", daemon=True).start()

    def submit(self, job: StoreJob, breaks: int) -> None:
        """Do a job after the earlier ones; `breaks`: how often the caller has seen the connection break."""
        self._posted.append((breaks, job))
        if not self._posting:  # once for all jobs of this turn of the loop: they become one batch
            self._posting = True
            self._loop.call_soon(self._post)

    def _post(self) -> None:
        self._posting = False
        self._call(self._take)

    def close(self) -> None:
        """End the session after the jobs that were submitted, if there is a connection."""
        self._call(self._close)

    def stop(self) -> None:
        """End the thread at once."""
        self._call(self._stop)

    def left(self) -> list[StoreJob]:
        """Return the jobs that came too late for the thread, once it has ended."""
        jobs = [job for _, job in self._posted]
        self._posted.clear()
        return jobs

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the thread has ended
            self._inner.call_soon_threadsafe(function, *arguments)

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._inner)
        self._wake, self._gone = asyncio.Event(), asyncio.Event()
        self._task = self._inner.create_task(self._live())
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._inner.run_until_complete(self._task)
        except Exception as bug:  # a session that is silent for ever must not look alive
            event(log, logging.ERROR, "etcd session failed", reason=repr(bug))
            self._tell(self._listeners.state, SessionState.EXPIRED)
        finally:
            self._over = True
            self._fail(SessionExpired)
            self._inner.run_until_complete(self._inner.shutdown_asyncgens())
            self._inner.close()
            self._tell(self._listeners.ended)

    def _tell(self, listener: Callable[..., object], *news: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(listener, *news)

    def _take(self) -> None:
        while self._posted:
            breaks, job = self._posted.popleft()
            if breaks < self._breaks:
                self._tell(self._listeners.outcomes, [Outcome(job, None, ConnectionLoss(), [])])
            else:
                self._jobs.append((breaks, job))
        self._wake.set()

    def _close(self) -> None:
        self._closing = True
        self._take()
        if not self._connected:
            self._stop()

    def _stop(self) -> None:
        self._task.cancel()

    def _fail(self, error: type[StoreError]) -> None:
        """Fail all jobs that were submitted over a connection that is gone; all of them once the session has ended."""
        failed = [*self._batch, *(job for breaks, job in self._jobs if self._over or breaks < self._breaks)]
        self._batch = []
        self._jobs = deque(item for item in self._jobs if not self._over and item[0] >= self._breaks)
        self._tell(self._listeners.outcomes, [Outcome(job, None, error(), []) for job in failed])

    # -- connections --------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Visit the servers in turn until the session has ended."""
        addresses = random.sample(self._servers.addresses, len(self._servers.addresses))
        while not self._over:
            for at in itertools.takewhile(lambda _: not self._over, addresses):
                self.reasons.setdefault(at, "it has not answered yet")
                self.reasons[at] = await self._visit(at)
            if not self._opened or len(addresses) == 1:  # one of several may be the only one that stands still
                self._slow_rounds += 1
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(PAUSE_S_MAX, 2 * self._pause_s)

    def _patience_s(self, least_s: float = 0.0) -> float:
        """Return the time for a server to answer."""
        share_s = max(least_s, self._timeout_s * SILENT_SHARE)
        return min(share_s * 2.0 ** min(self._slow_rounds, 10), max(share_s, PATIENCE_S_MAX))

    async def _visit(self, at: HostPort) -> str:
        """Be connected to a server as long as it goes. Return why it ended."""
        gateway = Gateway(at, self._servers.access, self._patience_s(1.0))
        ledger: Ledger | None = None
        try:
            await gateway.log_in()
            ledger = await self._joined(gateway)
            await self._serve(gateway, ledger)
        except StoreRefused as refused:
            return self._refuse(StoreRefused(detail=f"etcd at {at} (etcd.connect) {refused.detail}"))
        except (EtcdRefusal, StoreFailed) as refused:
            return self._refuse(StoreFailed(detail=f"etcd at {at} (etcd.connect): {refused}"))
        except EtcdUnanswered as problem:
            return str(problem)
        except OSError as problem:
            return tls_words(problem) if self._servers.access.tls is not None else system_words(problem)
        finally:
            gateway.close()
            if self._connected:
                self._disconnect(ledger)
        return ""

    def _refuse(self, error: StoreError) -> str:
        """Give up a session that never was, as etcd refuses it; another one goes on trying."""
        if not self._opened:
            self._over = True
            self._tell(self._listeners.refused, error)
        return error.detail

    def _disconnect(self, ledger: Ledger | None) -> None:
        self._connected = False
        if ledger is not None and ledger.flight is not None:
            self._unsure = ledger.flight.clock
        self._renewals.news()
        if not self._over:
            self._breaks += 1
            self._tell(self._listeners.state, SessionState.DISCONNECTED)
            self._fail(ConnectionLoss)

    async def _joined(self, gateway: Gateway) -> Ledger:
        """Begin the session, or go on with it. Return a ledger with all nodes.

        Raises EtcdUnanswered, EtcdRefusal, OSError, StoreFailed."""
        is_new = not self._number
        if is_new:
            await self._begin(gateway)
        hears = Hears(self._heard, self._fired, self._ended)
        ledger = Ledger(gateway, self._keys, self._number, self._marks, hears)
        beating = asyncio.create_task(self._beat(gateway, None))  # a large tree may take a while
        loading = asyncio.create_task(self._load(gateway, ledger, is_new=is_new))
        try:
            await asyncio.wait([loading, beating], return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
            await loading
        finally:
            await cancel_and_wait(beating, loading)
        if not self._opened and self._number not in ledger.sessions:
            self._number = 0
            raise EtcdUnanswered("its lease had ended before the session was opened")
        if why := await ledger.why_not(self._seen):
            self.went_back = why
            raise EtcdUnanswered("it is another cluster, was restored from an older copy, or has lost its data")
        return ledger

    async def _load(self, gateway: Gateway, ledger: Ledger, *, is_new: bool) -> None:
        if is_new:
            await self._put_session(gateway)
        grow, self._loads = self._loads, False
        await ledger.load(grow=grow)
        self._loads = True

    async def _begin(self, gateway: Gateway) -> None:
        granted = await gateway.call("lease", "/v3/lease/grant", {"TTL": str(-int(-self._timeout_s // 1))})
        session, ttl_s = number(granted.body, "ID"), number(granted.body, "TTL")
        if session <= 0 or not 0 < ttl_s <= TTL_S_MAX:
            raise EtcdUnanswered("it granted no lease")
        self._number, self._timeout_s = session, ttl_s

    async def _put_session(self, gateway: Gateway) -> None:
        """Put the session's key, unless its lease has ended. Raises as `Gateway.call`."""
        own = put(self._keys.session(self._number), b"", self._number)
        try:
            await gateway.call("kv", "/v3/kv/txn", {"success": [own]})
        except EtcdRefusal as refusal:
            if not refusal.of_lease:
                raise

    async def _kept_alive(self, gateway: Gateway) -> bool:
        answer = await gateway.call("lease", "/v3/lease/keepalive", {"ID": str(self._number)})
        return number(part(answer.body, "result"), "TTL") > 0

    async def _beat(self, gateway: Gateway, ledger: Ledger | None) -> None:
        """Keep the lease alive; leave a server that does not answer, or whose watch falls behind.

        `ledger`: None while the tree is being loaded; nothing that depends on the lease is renewed then. An answer from
        before an election proves nothing: a leader that was frozen answers as one until it learns of its successor."""
        term = gateway.term
        while not self._over:
            sent_ms, limit_s = boot_ms(), self._patience_s()
            try:
                async with asyncio.timeout(limit_s):
                    if not await self._kept_alive(gateway):
                        self._gone.set()
                    for session in await ledger.catch_up("lease") if ledger is not None else ():
                        self._ended(session)
            except TimeoutError:
                raise EtcdUnanswered(f"it did not answer in {limit_s:g} s") from None
            if self._gone.is_set():  # the answers prove nothing for a session that has ended
                return
            same, term = gateway.term == term, gateway.term
            if ledger is not None and same:
                self._renewals.moved(sent_ms)
                if boot_ms() - sent_ms < self._timeout_s * SILENT_SHARE * 1000:
                    self._slow_rounds = 0
            await asyncio.sleep(self._timeout_s / ASKS if same else 0)

    async def _serve(self, gateway: Gateway, ledger: Ledger) -> None:
        """Do jobs until the connection breaks or the session has ended. Raises SessionExpired, and as `_joined`."""
        self._gone.clear()
        if self._number not in ledger.sessions:
            self._gone.set()
        self._dead |= ledger.orphans - {self._number}
        following = asyncio.create_task(ledger.follow())
        working = asyncio.create_task(self._work(gateway, ledger))
        others = [working, asyncio.create_task(self._beat(gateway, ledger)), asyncio.create_task(self._gone.wait())]
        try:
            await asyncio.wait([following, *others], return_when=asyncio.FIRST_COMPLETED)
            if self._gone.is_set() or _expired(working):
                await cancel_and_wait(*others)
                await self._expire(ledger, following)
                return
            for task in (following, *others):
                if task.done():
                    await task
        finally:
            await cancel_and_wait(following, *others)
            self._seen = ledger.seen

    async def _expire(self, ledger: Ledger, following: asyncio.Task[None]) -> None:
        """Delete the nodes of the session, which etcd has ended. Raises as `_joined`; another visit goes on then."""
        deleting = asyncio.create_task(self._bury(ledger, self._number, alive=False))
        await asyncio.wait([following, deleting], return_when=asyncio.FIRST_COMPLETED)
        if not deleting.done():
            await cancel_and_wait(deleting)
            await following
        deleting.result()
        self._connected, self._over = False, True
        self._renewals.news()
        self._tell(self._listeners.state, SessionState.EXPIRED)
        self._fail(SessionExpired)

    async def _work(self, gateway: Gateway, ledger: Ledger) -> None:
        """Do jobs; return once the session was closed."""
        limit_s = self._patience_s(1.0)
        try:
            async with asyncio.timeout(limit_s):
                await ledger.followed.wait()
        except TimeoutError:
            raise EtcdUnanswered(f"it did not begin a watch in {limit_s:g} s") from None
        if ledger.clock == self._unsure:
            await ledger.fence()
        self._unsure = -1
        gateway.patience_s = max(gateway.patience_s, self._timeout_s)  # a large transaction takes long; see _beat
        self._connected = True
        self.went_back, self._pause_s = "", PAUSE_S
        self.reasons.clear()
        if not self._opened:
            self._opened = True
            self._tell(self._listeners.opened, self._number, int(self._timeout_s * 1000))
        self._tell(self._listeners.state, SessionState.CONNECTED)
        while True:
            while self._dead:
                await self._bury(ledger, self._dead.pop())
            if self._jobs:
                self._batch = [self._jobs.popleft()[1] for _ in range(min(len(self._jobs), BATCH_JOBS_MAX))]
                while self._batch:
                    done = await ledger.done(self._batch)
                    self._batch = self._batch[len(done) :]
            elif self._closing:
                await self._bury(ledger, self._number)
                await gateway.call("kv", "/v3/lease/revoke", {"ID": str(self._number)})
                self._over, self._connected = True, False
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _bury(self, ledger: Ledger, session: int, *, alive: bool = True) -> None:
        """Delete the ephemeral nodes of a session that ended; later again, if etcd refuses."""
        if not await ledger.bury(session, alive=alive):
            self._inner.call_later(RETRY_S, self._ended, session)

    # -- what the ledger hears ----------------------------------------------------------------------------------------

    def _heard(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._note(outcome.events)
        self._tell(self._listeners.outcomes, outcomes)

    def _fired(self, events: list[WatchEvent]) -> None:
        self._note(events)
        self._tell(self._listeners.events, events)

    def _note(self, events: list[WatchEvent]) -> None:
        for each in events:
            self._renewals.news(each.path)

    def _ended(self, session: int) -> None:
        if session == self._number:
            self._gone.set()
        else:
            self._dead.add(session)
            self._wake.set()


def _expired(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and isinstance(task.exception(), SessionExpired)
