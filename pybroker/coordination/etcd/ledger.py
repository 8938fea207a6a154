"""Transactions of one session by one server: the replica follows the watch, and batches of work become transactions.

    a batch --evaluated on the replica--> reads and refusals only --> read the clock, follow up to it, evaluate again
                                       └> nodes changed --> compare the clock and put clock and nodes, in one request
        it took effect, or the watch has our mark --> committed: the batch is answered
        the watch has another mark                --> rolled back, and evaluated again after it

At either outcome, the events of all earlier transactions have fired, and those of later ones have not: a transaction
takes effect only if it is the next one after those that the replica has. The watch brings it a second time, unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from pybroker.clock import wall_ms
from pybroker.coordination.local import Outcome
from pybroker.coordination.store import AnyFuture, SessionExpired, StoreError, StoreFailed, WatchEvent
from pybroker.coordination.tree_session import AnyTree, StoreJob

from .gateway import EtcdRefusal, Gateway, Json, KeyValue, delete, key_values, nested, put, ranges, read, text
from .http import EtcdUnanswered
from .replica import ReplicatedTree

TXN_OPS_MAX: Final = 128
"""etcd's default for operations in a transaction (--max-txn-ops); a nested one has as many as its parent leaves."""
CHANGES_MAX: Final = 4000
"""The most nodes of one transaction: 64 operations of at most 64 operations each, the clock among them."""
CHANGES_AT_ONCE: Final = 1000
"""Several jobs share a transaction of at most so many nodes: the first ones are answered while etcd does the others."""
TXN_BYTES_MAX: Final = 1_450_000
"""A request to etcd has at most 1.5 MiB by default (--max-request-bytes)."""
PUT_BYTES: Final = 32
"""An upper bound for a put without its key and value."""
ZXID_DIGITS_MAX: Final = 19
ZXID_END: Final = 3 << 61
"""Zxids are below this: above all that a restored node may have, and far from 2**63."""
PAGE_KEYS: Final = 128
"""Keys that the first request loads: at the largest nodes, a page is below the limit of an answer."""
PAGE_KEYS_MAX: Final = 2048
"""Pages grow up to this while nodes are small, as etcd counts all keys that are left for each page."""
PAGE_BYTES: Final = 1 << 20
"""The size of a page after which the next one has PAGE_KEYS again."""


Puts = dict[bytes, bytes | None]
"""The keys of changed nodes with their values; None for a node that was deleted."""


class Keys:
    """The keys of a cluster below its prefix."""

    def __init__(self, prefix: str) -> None:
        self.clock = f"{prefix}/clock".encode()
        self.tree = f"{prefix}/tree".encode()
        self.sessions = f"{prefix}/sessions/".encode()
        self.sessions_end = f"{prefix}/sessions0".encode()
        self.start, self.end = f"{prefix}/".encode(), f"{prefix}0".encode()  # "0" is the next byte after "/"
        self.loaded = (
            (self.clock, self.clock + b"\0"),
            (self.sessions, self.sessions_end),
            (self.tree + b"/", self.tree + b"0"),
        )
        """The ranges of keys that a session loads: another cluster may have keys between them."""

    def node(self, path: str) -> bytes:
        return self.tree + path.encode()

    def path(self, key: bytes) -> str | None:
        """The path of a node's key; None for any other key."""
        if not key.startswith(self.tree + b"/"):
            return None
        return key[len(self.tree) :].decode(errors="surrogateescape")

    def session(self, number: int) -> bytes:
        return self.sessions + b"%x" % number

    def number(self, key: bytes) -> int | None:
        """The session of a key; None for any other key."""
        digits = key.removeprefix(self.sessions)
        if digits == key or not digits.isalnum() or not digits.isascii():
            return None
        try:
            return int(digits, 16)
        except ValueError:
            return None


class Flight:
    """A transaction that was sent, and has not been seen in the watch yet."""

    def __init__(self, mark: bytes, outcomes: list[Outcome], clock: int) -> None:
        self.mark = mark
        self.outcomes = outcomes
        self.clock = clock
        self.committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Hears(NamedTuple):
    """The calls with what a ledger learns from the watch, in its order."""

    outcomes: Callable[[list[Outcome]], object]
    events: Callable[[list[WatchEvent]], object]
    end: Callable[[int], object]
    """Called with a session that ended."""


class Seen(NamedTuple):
    """A transaction that a session has seen: its cluster, the revision of the clock, its zxid and mark."""

    cluster: int = 0
    clock: int = 0
    zxid: int = 0
    mark: bytes = b""


class Ledger:
    """The transactions of a session while one connection lasts."""

    def __init__(self, gateway: Gateway, keys: Keys, session: int, marks: Iterator[int], hears: Hears) -> None:
        """`marks`: numbers that no transaction of this session has had, over any connection."""
        self._gateway = gateway
        self._keys = keys
        self._session = session
        self._marks = marks
        self._hears = hears
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._replica = ReplicatedTree(wall_ms)
        self.flight: Flight | None = None
        self.cluster = self.revision = 0
        self.clock = 0
        """The revision of the clock's key up to which the replica has all transactions."""
        self._turns = 0
        """The version of the clock's key, which each transaction puts once."""
        self.zxid, self._mark = 0, b""
        """The last zxid of these, and the mark of its transaction."""
        self.sessions: set[int] = set()
        self._answered: set[int] = set()
        """The revisions of our transactions that were committed by their answers, and that the watch will bring."""
        self.followed = asyncio.Event()
        """Set once the watch is there."""

    @property
    def orphans(self) -> set[int]:
        """Sessions that have ended, and own nodes."""
        return self._replica.owners() - self.sessions

    @property
    def seen(self) -> Seen:
        """The last transaction of the replica."""
        return Seen(self.cluster, self.clock, self.zxid, self._mark)

    # -- the replica --------------------------------------------------------------------------------------------------

    async def load(self, *, grow: bool = True) -> None:
        """Load all keys as they are at one revision; `grow`: by larger pages while nodes are small. Raises as
        `Gateway.call`, and StoreDamaged."""
        nodes: list[tuple[str, bytes | None]] = []
        limit = PAGE_KEYS
        for start, end in self._keys.loaded:
            while start:
                found, more = await self._page(start, end, limit)
                is_small = sum(len(each.key) + len(each.value) for each in found) < PAGE_BYTES
                limit = min(PAGE_KEYS_MAX, 2 * limit) if grow and is_small else PAGE_KEYS
                for each in found:
                    if each.key == self._keys.clock:
                        self.clock, self._turns = each.mod_revision, each.version
                        self.zxid, self._mark = _clock(each.value)
                    elif (number := self._keys.number(each.key)) is not None:
                        self.sessions.add(number)
                    elif (path := self._keys.path(each.key)) is not None:
                        nodes.append((path, each.value))
                start = found[-1].key + b"\0" if more else b""
        self._replica.follow(self.zxid, nodes)

    async def _page(self, start: bytes, end: bytes, limit: int) -> tuple[list[KeyValue], bool]:
        """Return the first keys of a range at the loaded revision, and True if there are more."""
        body = {**read(start, end), "limit": limit, "revision": str(self.revision)}
        answer = await self._gateway.call("kv", "/v3/kv/range", body)
        if not self.revision:
            self.cluster, self.revision = answer.cluster, answer.revision
        found = key_values(answer.body)
        if any(not start <= each.key < end for each in found):
            raise EtcdUnanswered("it sent keys that were not asked for")
        return found, bool(found) and answer.body.get("more") is True

    async def why_not(self, seen: Seen) -> str:
        """Return why etcd's history is not the one that this transaction belongs to; "" if it is, or if etcd does not
        know any more, as it was compacted. Raises as `Gateway.call`."""
        if not seen.cluster:
            return ""
        if self.cluster != seen.cluster:
            return f"etcd at {self._gateway.at} is another cluster than the session was opened with"
        if self.zxid < seen.zxid or self.clock < seen.clock:
            return f"etcd has transactions up to {self.zxid}, but the session has seen {seen.zxid}"
        try:
            body = {**read(self._keys.clock), "revision": str(seen.clock)}
            answer = await self._gateway.call("kv", "/v3/kv/range", body) if seen.clock else None
        except EtcdUnanswered as unanswered:
            if "compacted" not in str(unanswered):
                raise
            return ""
        if answer is not None and [_clock(each.value) for each in key_values(answer.body)] != [(seen.zxid, seen.mark)]:
            return f"etcd has another transaction {seen.zxid} than the session has seen"
        return ""

    async def follow(self) -> None:
        """Apply what the watch has from the loaded revision on, until it ends. Raises as `Gateway.watch`."""
        keys, first = self._keys, self.revision + 1
        async for revision, events in self._gateway.watch(keys.start, keys.end, first, self._answered):
            self.followed.set()
            if revision in self._answered:
                self._answered.remove(revision)
                self.revision = revision
            else:
                self._apply(revision, events)

    def _apply(self, revision: int, events: list[KeyValue]) -> None:
        clock = next((each for each in events if each.key == self._keys.clock), None)
        nodes = [(path, each) for each in events if (path := self._keys.path(each.key)) is not None]
        if (clock is None and nodes) or (clock is not None and clock.deleted):
            raise EtcdUnanswered("another program has changed keys below the prefix of etcd.connect")
        if clock is not None:
            self._turn(clock, [(path, None if each.deleted else each.value) for path, each in nodes])
        for each in events:
            number = self._keys.number(each.key)
            if number is not None and not each.deleted:
                self.sessions.add(number)
            elif number is not None:
                self.sessions.discard(number)
                self._hears.end(number)
        self.revision = revision

    def _turn(self, clock: KeyValue, nodes: Sequence[tuple[str, bytes | None]]) -> None:
        """Apply a transaction: commit our own one, or undo it and apply another session's."""
        if clock.version != self._turns + 1:
            raise EtcdUnanswered(f"its watch left out {clock.version - self._turns - 1} transactions")
        zxid, mark = _clock(clock.value)
        flight = self.flight
        if flight is not None and flight.mark == mark:
            self._committed(flight, clock.mod_revision)
            return
        self.flight = None
        self._replica.rollback()
        self._hears.events(self._replica.follow(zxid, nodes))
        if flight is not None and not flight.committed.done():
            flight.committed.set_result(False)
        self._move(clock.mod_revision, zxid, mark)

    def _committed(self, flight: Flight, clock: int) -> None:
        """Keep the replica's changes, which are a transaction now, and answer them."""
        self.flight = None
        self._replica.commit()
        self._hears.outcomes(flight.outcomes)
        if not flight.committed.done():
            flight.committed.set_result(True)
        self._move(clock, self._replica.zxid, flight.mark)

    def _move(self, clock: int, zxid: int, mark: bytes) -> None:
        """Note the latest transaction of the replica."""
        self._turns += 1
        self.clock, self.zxid, self._mark = clock, zxid, mark
        for waiter in [waiter for at, waiter in self._waiting if at <= self.clock and not waiter.done()]:
            waiter.set_result(None)
        self._waiting = [(at, waiter) for at, waiter in self._waiting if at > self.clock]

    async def _reached(self, clock: int) -> None:
        """Wait until the replica has all transactions up to this revision of the clock."""
        if self.clock < clock:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((clock, waiter))
            await waiter

    async def catch_up(self, lane: str = "kv") -> set[int]:
        """Wait until the replica has all transactions that were done before this call.

        Return the sessions that had ended by then, and still own nodes. Raises as `Gateway.call`."""
        asked = read(self._keys.clock), read(self._keys.sessions, self._keys.sessions_end)
        body = {"success": [{"request_range": each} for each in asked]}
        while True:
            known = self._replica.owners()
            clock, sessions = ranges((await self._gateway.call(lane, "/v3/kv/txn", body)).body)
            await self._reached(max((each.mod_revision for each in clock), default=0))
            absent = self._replica.owners() - {self._keys.number(each.key) for each in sessions}
            if absent <= known:  # else some may have begun after the answer
                return absent

    # -- transactions -------------------------------------------------------------------------------------------------

    async def done(self, jobs: Sequence[StoreJob], *, alive: bool = True) -> list[Outcome]:
        """Do the first of these jobs, as many as fit in a transaction, and answer them. Return their outcomes.

        `alive`: only while the session is there. Raises SessionExpired if it is not, and as `Gateway.call`."""
        current = all(job.watch is not None for job in jobs)
        if current:
            await self._see_all()
        while True:
            outcomes, puts, problem = self._evaluated(jobs)
            if not puts:
                self._replica.rollback()
                if current:
                    self._hears.outcomes(outcomes)
                    return outcomes
                await self._see_all()  # refusals are as good as the replica they were made on
                current = True
                continue
            jobs, smaller = jobs[: len(outcomes)], False
            if not problem:
                try:
                    if await self._commit(outcomes, puts, alive=alive):
                        return outcomes
                    current = True
                    continue
                except EtcdRefusal as refusal:
                    problem, smaller = f"etcd refused the transaction: {refusal}", refusal.of_size
            self._replica.rollback()
            if len(jobs) == 1 or not smaller:
                outcomes = [Outcome(job, None, StoreFailed(detail=problem), []) for job in jobs]
                self._hears.outcomes(outcomes)
                return outcomes
            jobs = jobs[: len(jobs) // 2]

    async def _see_all(self) -> None:
        """Catch up, and delete the nodes of sessions that have ended."""
        for number in await self.catch_up():
            if number == self._session:
                raise SessionExpired
            await self.bury(number)

    async def bury(self, session: int, *, alive: bool = True) -> bool:
        """Delete the nodes of a session that has ended. False if etcd refuses it. Raises as `done`."""
        answered: AnyFuture = asyncio.get_running_loop().create_future()
        answered.set_result(None)
        (outcome,) = await self.done([StoreJob(partial(_end, session=session), answered)], alive=alive)
        return outcome.error is None

    async def fence(self) -> None:
        """Move the clock, so that no transaction sent before can take effect later. Raises as `done`."""
        await self._commit([], {}, alive=True)

    def _evaluated(self, jobs: Sequence[StoreJob]) -> tuple[list[Outcome], Puts, str]:
        """Do jobs on the replica, as many as fit in a transaction, but at least one.

        Return their outcomes, the changed nodes in the order of their first changes, and why one alone does not fit."""
        outcomes, puts, size = list[Outcome](), Puts(), 0
        for job in jobs:
            events: list[WatchEvent] = []
            before = self._replica.mark()
            try:
                outcome = Outcome(job, job.work(self._replica, events), None, events)
            except StoreError as error:
                outcome = Outcome(job, None, error, [])
            more = {self._keys.node(each.path): self._replica.value(each.path) for each in outcome.events}
            size += sum(_put_bytes(*each) for each in more.items())
            size -= sum(_put_bytes(key, puts[key]) for key in more if key in puts)
            count = len(puts) + sum(key not in puts for key in more)
            problem = _too_large(count, size)
            if outcomes and (problem or count > CHANGES_AT_ONCE):
                self._replica.undo(before)
                break
            puts |= more
            outcomes.append(outcome)
            if problem:
                return outcomes, puts, problem
        return outcomes, puts, ""

    async def _commit(self, outcomes: list[Outcome], puts: Mapping[bytes, bytes | None], *, alive: bool) -> bool:
        """Send the replica's changes as a transaction. False if another session's was first: they are undone then."""
        mark = b"%x.%d" % (self._session, next(self._marks))
        flight = self.flight = Flight(mark, outcomes, self.clock)
        keys, zxid = self._keys, b"%d" % self._replica.zxid
        compare: list[Json] = [
            {"key": text(keys.clock), "target": "MOD", "result": "EQUAL", "mod_revision": str(self.clock)}
        ]
        if alive:
            there = {"target": "CREATE", "result": "GREATER", "create_revision": "0"}
            compare.append({"key": text(keys.session(self._session)), **there})
        writes = _grouped([delete(key) if value is None else put(key, value) for key, value in puts.items()])
        body = {
            "compare": compare,
            "success": [put(keys.clock, zxid + b" " + mark), *writes],
            "failure": [{"request_range": read(key)} for key in (keys.clock, keys.session(self._session))],
        }
        try:
            answer = await self._gateway.call("kv", "/v3/kv/txn", body)
        except EtcdRefusal:
            self._undo(flight)
            raise
        if answer.body.get("succeeded") is True:
            if answer.revision <= flight.clock:
                raise EtcdUnanswered("it did a transaction at a revision before the last one")
            if self.flight is flight:  # the answer came before the watch had it
                self._answered.add(answer.revision)
                self._committed(flight, answer.revision)
        else:
            clock, session = ranges(answer.body)
            if max((each.mod_revision for each in clock), default=0) <= flight.clock:
                self._undo(flight)
                if alive and not session:
                    raise SessionExpired
                raise EtcdUnanswered("it refused a transaction without a reason")
        return await flight.committed  # the clock may have moved by this transaction itself, if a proxy sent it twice

    def _undo(self, flight: Flight) -> None:
        if self.flight is flight:
            self.flight = None
            self._replica.rollback()


def _end(tree: AnyTree, events: list[WatchEvent], session: int) -> None:
    tree.end_session(session, events)


def _clock(value: bytes) -> tuple[int, bytes]:
    """The last zxid, and the mark of the transaction."""
    zxid, _, mark = value.partition(b" ")
    if not zxid.isdigit() or len(zxid) > ZXID_DIGITS_MAX or int(zxid) >= ZXID_END:
        raise EtcdUnanswered("another program has written the clock below the prefix of etcd.connect")
    return int(zxid), mark


def _put_bytes(key: bytes, value: bytes | None) -> int:
    """An upper bound for the size of a node's change in a transaction."""
    return PUT_BYTES + len(key) + len(value or b"")


def _too_large(nodes: int, size: int) -> str:
    """The reason why so many changes do not fit in a transaction; empty if they do."""
    if nodes > CHANGES_MAX:
        return f"a transaction on etcd changes at most {CHANGES_MAX} nodes, and this one changes {nodes}"
    if size > TXN_BYTES_MAX:
        return f"a transaction on etcd holds {TXN_BYTES_MAX} bytes, and this one has {size}"
    return ""


def _grouped(writes: Sequence[Json]) -> Sequence[Json]:
    """Nest operations so that each level has as few as etcd allows."""
    if len(writes) < TXN_OPS_MAX:
        return writes
    groups = next(k for k in range(1, TXN_OPS_MAX) if k * (TXN_OPS_MAX - 1 - k) >= len(writes))
    size = TXN_OPS_MAX - 1 - groups
    return [nested(writes[first : first + size]) for first in range(0, len(writes), size)]
