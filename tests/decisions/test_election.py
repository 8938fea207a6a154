"""Elections by the set of live brokers: each row is a partition of replicas 1, 2 and 3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.decisions.election import after_change, first, imbalance, preferred
from pybroker.decisions.image import PartitionState
from tests.rows import with_each

REPLICAS = (1, 2, 3)


def state(leader: int, *isr: int) -> PartitionState:
    return PartitionState(REPLICAS, leader, 5, isr, 1, 7)


@with_each(
    ("leader", "isr", "live", "unclean", "leads", "in_sync"),
    [
        (1, (1, 2, 3), (2, 3), False, 2, (2, 3)),
        (1, (1, 3), (2, 3), False, 3, (3,)),
        (1, (1, 2), (1, 3), False, 1, (1,)),
        (1, (1,), (2, 3), False, -1, (1,)),
        (1, (1,), (2, 3), True, 2, (2,)),
        (1, (1, 2), (3,), False, -1, (1, 2)),
        (-1, (1, 2), (2, 3), False, 2, (2,)),
        (1, (1,), (), True, -1, (1,)),
    ],
)
def test_a_leader_is_gone(
    leader: int, isr: tuple[int, ...], live: tuple[int, ...], unclean: bool, leads: int, in_sync: tuple[int, ...]
) -> None:
    after = after_change(state(leader, *isr), live, unclean=unclean)
    assert after == state(leads, *in_sync)._replace(leader_epoch=6)


@pytest.mark.parametrize(
    ("leader", "isr", "live"), [(1, (1, 2, 3), (1, 2, 3)), (-1, (1,), (2, 3)), (1, (1,), (1,)), (2, (2, 3), (2, 3))]
)
def test_nothing_changes(leader: int, isr: tuple[int, ...], live: tuple[int, ...]) -> None:
    assert after_change(state(leader, *isr), live) is None


def test_a_broker_that_leaves() -> None:
    """A broker that leaves loses its leaderships and its places in ISRs, except where it is the only replica in
    sync."""
    live = {1, 2, 3}
    assert after_change(state(1, 1, 2, 3), live, leaving={1}) == state(2, 2, 3)._replace(leader_epoch=6)
    assert after_change(state(2, 1, 2, 3), live, leaving={1}) == state(2, 2, 3)._replace(leader_epoch=6)
    assert after_change(state(1, 1), live, leaving={1}) is None
    assert after_change(state(1, 1, 2), live, leaving={1, 2}) is None


def test_the_preferred_replica() -> None:
    assert preferred(state(2, 1, 2), {1, 2}) == state(1, 1, 2)._replace(leader_epoch=6)
    for leader, isr, live in ((1, (1, 2), {1, 2}), (2, (2, 3), {1, 2}), (2, (1, 2), {2})):
        assert preferred(state(leader, *isr), live) is None
    assert imbalance([state(1, 1), state(2, 1, 2), state(3, 3)], 1) == pytest.approx(2 / 3)
    assert imbalance([state(1, 1)], 2) == 0.0


def test_a_new_partition() -> None:
    assert first((2, 1, 3), {1, 3}, 4) == PartitionState((2, 1, 3), 1, 0, (1, 3), 4, 0)
    assert first((2, 1), set(), 4) == PartitionState((2, 1), -1, 0, (2, 1), 4, 0)


brokers = st.sets(st.sampled_from(REPLICAS))


@given(isr=brokers.filter(bool), live=brokers, leaving=brokers, leader=st.sampled_from((-1, *REPLICAS)))
def test_a_clean_election_loses_nothing(isr: set[int], live: set[int], leaving: set[int], leader: int) -> None:
    """A clean election loses nothing: the leader is in the ISR before and after; the ISR only shrinks, and is never
    empty."""
    before = state(leader if leader in isr else -1, *sorted(isr))
    after = after_change(before, live, leaving=leaving) or before
    assert set(after.isr) <= isr
    assert after.isr
    assert after.leader == -1 or (after.leader in after.isr and after.leader in live) or after == before
    assert after.leader_epoch in (before.leader_epoch, before.leader_epoch + 1)
    if isr & live:
        assert after.leader != -1
