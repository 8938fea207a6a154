"""The steps of a reassignment: what each is, and any interleaving of them with deaths, returns and cancels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker import errors
from pybroker.decisions import election, reassignment
from pybroker.decisions.image import NO_LEADER, PartitionState
from pybroker.errors import KafkaError
from tests.rows import with_each

BROKERS = range(1, 7)
HERE = PartitionState((1, 2, 3), 1, 5, (1, 2, 3), 1, 7)
MOVING = HERE._replace(replicas=(4, 5, 1, 2, 3), adding=(4, 5), removing=(2, 3), leader_epoch=6)


def shape(state: PartitionState | None) -> tuple[Any, ...]:
    """The decision of a step, without the epochs."""
    if state is None:
        return ()
    return state.replicas, state.adding, state.removing, state.given_up, state.leader, state.isr


@with_each(
    ("state", "wanted", "after"),
    [
        (HERE, (4, 5, 1), ((4, 5, 1, 2, 3), (4, 5), (2, 3), (), 1, (1, 2, 3))),
        (HERE, (1, 2, 3, 4), ((1, 2, 3, 4), (4,), (), (), 1, (1, 2, 3))),
        (HERE, (2,), ((2, 1, 3), (), (1, 3), (), 1, (1, 2, 3))),
        (HERE, (3, 2, 1), ((3, 2, 1), (), (), (), 1, (1, 2, 3))),
        (HERE, (1, 2, 3), ()),
        (MOVING, (4, 5, 1), ()),
        # A cancel: copies that are not in sync go at once, one that is in sync stays until the next step.
        (MOVING, (1, 2, 3), ((1, 2, 3), (), (), (4, 5), 1, (1, 2, 3))),
        (MOVING._replace(isr=(1, 4)), (1, 2, 3), ((1, 2, 3, 4), (), (4,), (4, 5), 1, (1, 4))),
        # Another target: Kafka's rules, and the first target's replicas are given up.
        (MOVING, (6, 4), ((6, 4, 1, 2, 3), (6, 4), (1, 2, 3), (5,), 1, (1, 2, 3))),
        (MOVING._replace(given_up=(6,)), (6, 5, 1), ((6, 5, 1, 2, 3), (6, 5), (2, 3), (4,), 1, (1, 2, 3))),
    ],
)
def test_begin(state: PartitionState, wanted: tuple[int, ...], after: tuple[Any, ...]) -> None:
    """A new target keeps the original replicas until it is in sync, and gives up what only the last target needed."""
    begun = reassignment.begin(state, wanted)
    assert shape(begun) == after
    assert begun is None or begun.leader_epoch == state.leader_epoch + 1


CANCELLED = HERE._replace(replicas=(1, 2, 3, 4), removing=(4,), given_up=(4, 5), isr=(1, 4))


@with_each(
    ("state", "live", "min_isr", "after"),
    [
        (MOVING, BROKERS, 1, ()),
        (MOVING._replace(isr=(1, 2, 3, 4)), BROKERS, 1, ()),
        (MOVING._replace(isr=(1, 2, 3, 4, 5)), BROKERS, 1, ((4, 5, 1), (), (), (2, 3), 1, (1, 4, 5))),
        # The leader leaves: the first replica of the target leads.
        (
            MOVING._replace(leader=3, isr=(3, 1, 5, 4)),
            BROKERS,
            1,
            ((4, 5, 1), (), (), (2, 3), 4, (1, 5, 4)),
        ),
        (MOVING._replace(isr=(1, 2, 3, 4, 5)), (1, 2, 3, 4), 1, ()),
        (MOVING._replace(isr=(1, 4, 5), leader=NO_LEADER), (), 1, ()),
        (HERE._replace(adding=(3,)), BROKERS, 1, ((1, 2, 3), (), (), (), 1, (1, 2, 3))),
        # After a cancel a copy in sync stays only while it is needed for min.insync.replicas.
        (CANCELLED, BROKERS, 2, ()),
        (CANCELLED, BROKERS, 1, ((1, 2, 3), (), (), (4, 5), 1, (1,))),
        (CANCELLED._replace(leader=4, isr=(4, 2, 3)), BROKERS, 2, ((1, 2, 3), (), (), (4, 5), 2, (2, 3))),
        (CANCELLED._replace(leader=4, isr=(4,)), BROKERS, 1, ()),
        (HERE, BROKERS, 1, ()),
    ],
)
def test_advance(
    state: PartitionState, live: tuple[int, ...], min_isr: int, after: tuple[Any, ...]
) -> None:
    """Replicas leave once the target is alive and in sync; the leader is one of the target."""
    assert shape(reassignment.advance(state, live, min_isr=min_isr)) == after


def test_a_replica_that_stops_does_not_lead() -> None:
    """The new leader is not a broker that shuts down, if the target has another."""
    state = MOVING._replace(leader=3, isr=(3, 1, 5, 4))
    led = reassignment.advance(state, BROKERS, leaving={4})
    assert led is not None and led.leader == 5


def test_logs_to_delete() -> None:
    """Logs of replicas that were given up are deleted once they are out of the replicas, and then forgotten."""
    assert reassignment.to_delete(CANCELLED) == (5,)
    assert reassignment.forget(CANCELLED, {4}) is None
    assert shape(reassignment.forget(CANCELLED, {5})) == shape(CANCELLED._replace(given_up=(4,)))


@with_each(
    ("wanted", "code", "words"),
    [
        ((), errors.INVALID_REPLICA_ASSIGNMENT, "is empty"),
        ((1, 2, 1), errors.INVALID_REPLICA_ASSIGNMENT, "a broker twice"),
        ((1, -2), errors.INVALID_REPLICA_ASSIGNMENT, "negative id"),
        ((1, 6), errors.INVALID_REPLICA_ASSIGNMENT, "broker 6 is not alive"),
        (range(2000), errors.INVALID_REPLICA_ASSIGNMENT, "the limit is 1000"),
        ((1, 2), errors.INVALID_REPLICATION_FACTOR, "from 3 to 2"),
    ],
)
def test_refused_targets(wanted: tuple[int, ...], code: int, words: str) -> None:
    """Each target that Kafka refuses has its error code, and a sentence with the value."""
    with pytest.raises(KafkaError, match=words) as refused:
        reassignment.check(HERE, wanted, {1, 4, 5}, same_factor=code == errors.INVALID_REPLICATION_FACTOR)
    assert refused.value.code == code


def test_a_dead_replica_may_stay() -> None:
    """Only replicas that are added must be alive, as in Kafka: a broker is replaced while another is away."""
    reassignment.check(HERE, (1, 2, 4), {1, 4}, same_factor=True)


def test_an_unclean_election_passes_over_partial_copies() -> None:
    """A replica that is being added is not elected while it is not in sync, unless an operator asks for it."""
    state = MOVING._replace(isr=(1,))
    assert shape(election.after_change(state, {4, 2}, unclean=True))[4:] == (2, (2,))
    after = election.after_change(state, {4, 5}, unclean=True)
    assert after is not None and after.leader == NO_LEADER
    after = election.after_change(state, {4, 5}, unclean=True, partial=True)
    assert after is not None and after.leader == 4


class World:
    """One partition, and the logs of the brokers: each has a prefix of what was acknowledged."""

    def __init__(self) -> None:
        self.state = HERE
        self.live = set(BROKERS)
        self.logs = dict.fromkeys(HERE.replicas, 0)
        """How much of what was acknowledged each log has; no entry: no log."""
        self.written = 0
        self.original = self.wanted = HERE.replicas

    def set(self, state: PartitionState | None) -> None:
        """Apply a step, then write a record to all members of the ISR."""
        if state is not None:
            was, self.state = self.state, state._replace(partition_epoch=self.state.partition_epoch + 1)
            if state.leader not in (was.leader, NO_LEADER):
                assert state.leader in was.isr and state.leader_epoch > was.leader_epoch, "the leader was not in sync"
        if not reassignment.is_under_way(self.state):
            self.original = self.state.replicas
        self.check()
        if self.state.leader != NO_LEADER:
            self.written += 1
            self.logs.update(dict.fromkeys(self.state.isr, self.written))

    def check(self) -> None:
        state = self.state
        replicas = set(state.replicas)
        assert len(replicas) == len(state.replicas) and state.isr and set(state.isr) <= replicas
        assert state.leader in (NO_LEADER, *state.isr)
        assert replicas >= {*state.adding, *state.removing} and not {*state.adding} & {*state.removing}
        assert not {*state.given_up} & (replicas - {*state.removing}) and reassignment.target(state)
        assert any(self.logs.get(each) == self.written for each in state.isr), "acknowledged records are lost"
        for broker in state.isr:
            assert self.logs.get(broker) == self.written, f"{broker} is in the ISR without all records"
        assert reassignment.original(state) == tuple(
            broker for broker in state.replicas if broker in self.original
        ), "the originals are forgotten"
        assert set(reassignment.original(state)) == set(self.original)

    def begin(self, wanted: tuple[int, ...]) -> None:
        try:
            reassignment.check(self.state, wanted, self.live, same_factor=False)
        except KafkaError:
            return
        self.wanted = wanted
        self.set(reassignment.begin(self.state, wanted))

    def cancel(self) -> None:
        if reassignment.is_under_way(self.state):
            self.wanted = reassignment.original(self.state)
            self.set(reassignment.begin(self.state, self.wanted))

    def catch_up(self, broker: int) -> None:
        """A live replica copies the log, and the leader adds it to the ISR."""
        state = self.state
        if broker in state.replicas and broker in self.live and state.leader in self.live and broker not in state.isr:
            self.logs[broker] = self.written
            self.set(state._replace(isr=(*state.isr, broker)))

    def lag(self, broker: int) -> None:
        if broker in self.state.isr and broker != self.state.leader and self.state.leader in self.live:
            self.set(self.state._replace(isr=tuple(each for each in self.state.isr if each != broker)))

    def kill(self, broker: int) -> None:
        self.live.discard(broker)
        self.elect()

    def come(self, broker: int) -> None:
        self.live.add(broker)
        self.elect()

    def elect(self) -> None:
        self.set(election.after_change(self.state, self.live))

    def advance(self, min_isr: int = 1) -> bool:
        after = reassignment.advance(self.state, self.live, min_isr=min_isr)
        self.set(after)
        return after is not None

    def delete(self) -> None:
        gone = [broker for broker in reassignment.to_delete(self.state) if broker in self.live]
        for broker in gone:
            self.logs.pop(broker, None)
        self.set(reassignment.forget(self.state, gone))


one = st.sampled_from(list(BROKERS))
EVENTS = st.one_of(
    st.tuples(st.just("begin"), st.lists(one, min_size=1, max_size=4, unique=True).map(tuple)),
    st.tuples(st.just("cancel")),
    st.tuples(st.sampled_from(("catch_up", "catch_up", "lag", "kill", "come")), one),
    st.tuples(st.just("advance"), st.integers(1, 3)),
    st.tuples(st.just("delete")),
)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=400, deadline=None)
def test_any_interleaving(events: list[tuple[Any, ...]]) -> None:
    """No step loses what was acknowledged, a cancel knows the originals, and in quiet times the last target is reached
    with nothing left behind."""
    world = World()
    for name, *values in events:
        getattr(world, name)(*values)
    for broker in BROKERS:
        world.come(broker)
    for _ in range(20):
        for broker in world.state.replicas:
            world.catch_up(broker)
        if not world.advance(3):
            break
    assert world.state.replicas == world.wanted and not reassignment.is_under_way(world.state)
    assert world.state.leader in world.wanted and set(world.state.isr) == set(world.wanted)
    world.delete()
    assert world.state.given_up == () and set(world.logs) <= set(world.wanted)
