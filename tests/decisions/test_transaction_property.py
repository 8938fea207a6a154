"""Any history of one transactional id: clients that fence each other, lost answers, failed writes, timeouts, both
protocols, epochs that run out. Invariants are checked after each step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker import errors
from pybroker.decisions import transaction as t
from pybroker.decisions.transaction import EPOCH_LAST, Init, Transaction
from pybroker.decisions.transaction import ProducerIdAndEpoch as Producer
from pybroker.decisions.transaction import TxnState as State
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

KEYS = [TopicPartition("t", index) for index in range(3)]
TIMEOUT_MS = 100
SEATS = 3
CODES = {
    errors.CONCURRENT_TRANSACTIONS, errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_ID_MAPPING,
    errors.INVALID_TXN_STATE,
}  # fmt: skip


class World:
    """One transactional id at its coordinator, the writes that are under way, and the clients that use it."""

    def __init__(self, epoch: int) -> None:
        self.now, self.ids = 1_000, itertools.count(1)
        self.tx: Transaction | None = Transaction("tx", Producer(0, epoch), TIMEOUT_MS, State.EMPTY, self.now)
        self.pending: Transaction | None = None
        self.answers: int | None = None  # the seat whose request is pending
        self.clients: list[Producer | None] = [None] * SEATS
        self.given: dict[Producer, int] = {Producer(0, epoch): -1}  # to which seat
        self.order = [Producer(0, epoch)]

    def give(self, seat: int, producer: Producer) -> None:
        """The seat gets an answer with a producer id and an epoch."""
        assert producer.epoch <= EPOCH_LAST, "this epoch is left for a fence"
        owner = self.given.setdefault(producer, seat)
        assert owner == seat, f"{producer} was given to two clients"
        if producer not in self.order:
            assert producer > self.order[-1], "an epoch was used again"
            self.order.append(producer)

    def change(self, to: Transaction, seat: int | None) -> None:
        """A request is being stored."""
        assert self.pending is None
        if self.tx is not None and self.tx.state in t.DECIDED:
            assert to.state is (State.COMPLETE_COMMIT if self.tx.commits else State.COMPLETE_ABORT), "decided twice"
        self.pending, self.answers = to, seat

    def stored(self, stored: bool, hears: bool) -> None:
        """A write ends. The client may miss the answer: then it keeps the epoch that it has."""
        to, self.pending = self.pending, None
        if to is None or not stored:
            return
        self.tx = to
        seat = self.answers
        if seat is None or to.state is State.ONGOING:
            return
        if to.state in t.DECIDED and to.client_version == t.CLASSIC:
            return
        if to.state is State.PREPARE_ABORT and to.last is None:
            return  # a fence: the client has to ask again
        self.give(seat, to.given)
        if hears:
            self.clients[seat] = to.given


def init(world: World, seat: int, brings: bool) -> None:
    asked = Init("tx", TIMEOUT_MS, world.clients[seat] if brings else None)
    if world.pending is not None:
        return
    fresh = next(world.ids) if t.needs_producer_id(world.tx, asked) else -1
    before = world.tx
    change = t.init_producer(world.tx, asked, world.now, fresh)
    if asked.expected is not None and before is not None:
        assert asked.expected in (before.producer, before.last), "a fenced producer was let in"
    assert before is None or change.to.producer > before.producer or asked.expected == before.last, "nobody is fenced"
    world.change(change.to, seat)


def add(world: World, seat: int, key: int, newer: bool) -> None:
    by, before = world.clients[seat], world.tx
    if by is None:
        return
    version = t.EPOCH_PER_TRANSACTION if newer else t.CLASSIC
    to = t.add(before, by, [KEYS[key]], world.now, pending=world.pending is not None, version=version)
    assert before is not None and by == before.producer, "a fenced producer added a partition"
    if to is not None:
        world.change(to, seat)


def end(world: World, seat: int, commit: bool, newer: bool) -> None:
    by, before = world.clients[seat], world.tx
    if by is None:
        return
    pending = world.pending is not None
    if newer:
        fresh = next(world.ids) if t.needs_next_id(before, by) else -1
        to = t.end_with_epoch(before, by, commit, world.now, pending=pending, fresh_id=fresh)
    else:
        to = t.end(before, by, commit, world.now, pending=pending)
    assert before is not None
    if to is None:
        assert before.commits is commit and before.state in t.IDLE, "the client got the wrong outcome"
        if newer:
            world.give(seat, before.given)
            world.clients[seat] = before.given
        return
    assert by == before.producer, "a fenced producer ended a transaction"
    world.change(to, seat)


def tick(world: World, ms: int) -> None:
    world.now += ms
    if world.tx is not None and world.pending is None and t.has_timed_out(world.tx, world.now):
        aborted = t.fence(world.tx, world.now)
        assert aborted.producer > world.tx.producer, "nobody is fenced"
        world.change(aborted, None)


def markers(world: World) -> None:
    if world.tx is not None and world.pending is None and world.tx.state in t.DECIDED:
        world.change(t.complete(world.tx, world.now), None)


FATES = ["heard", "heard", "heard", "missed", "failed", "pending"]
"""The fates of a write: the client hears the answer or misses it; the write fails, or is still under way."""


def steps() -> Iterator[st.SearchStrategy[tuple[object, ...]]]:
    seats, flag = st.integers(0, SEATS - 1), st.booleans()
    yield st.tuples(st.just(init), seats, flag)
    yield st.tuples(st.just(add), seats, st.integers(0, 2), flag)
    yield st.tuples(st.just(end), seats, flag, flag)
    yield st.tuples(st.just(tick), st.sampled_from([1, 2 * TIMEOUT_MS]))
    yield st.tuples(st.just(markers))


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from([0, EPOCH_LAST - 4, EPOCH_LAST - 1]),
    st.lists(st.tuples(st.one_of(*steps()), st.sampled_from(FATES)), min_size=10, max_size=60),
)
def test_any_history(epoch: int, history: list[tuple[tuple[object, ...], str]]) -> None:
    """Faults 18, 19 and 23: no decided transaction changes; a fenced producer does nothing; no epoch is given twice,
    and none after 32766; a failed write uses up no epoch."""
    world = World(epoch)
    for (step, *arguments), fate in history:
        assert callable(step)
        before = world.tx
        try:
            step(world, *arguments)
        except KafkaError as refused:
            assert refused.code in CODES
            assert world.tx is before
        if fate != "pending":
            world.stored(fate != "failed", fate == "heard")
        if world.tx is not None:
            assert (world.tx.state is State.ONGOING) <= bool(world.tx.partitions)
            assert world.tx.producer.epoch <= t.EPOCH_MAX
            assert world.tx.given >= world.order[-1], "the epoch went back"
