"""The partition state that live brokers' knowledge implies after the store went back in time."""

from __future__ import annotations

from pybroker.decisions.image import PartitionState
from pybroker.decisions.rollback import NOTHING, Known, is_ahead, restored
from tests.rows import with_each

STORE = PartitionState((1, 2, 3), 1, 3, (1, 2, 3), 1, 4)
MISSING = PartitionState((1, 2, 3), -1, -1, (), -1, -1)


def told(epoch: int, leader: int, *isr: int, partition_epoch: int = 9) -> Known:
    return Known(epoch, partition_epoch, leader, isr, min(epoch, 2), 10)


def log(epoch: int, end: int) -> Known:
    return Known(epoch, 0, -1, (), epoch, end)


@with_each(
    ("known", "live", "unclean", "after"),
    [
        ({1: told(17, 2, 2, 3), 2: told(17, 2, 2, 3)}, {1, 2, 3}, False, (2, 18, (2, 3))),
        ({1: told(17, 2, 2, 3), 3: told(17, 2, 2, 3)}, {1, 3}, False, (3, 18, (3,))),
        ({1: told(17, 2, 2)}, {1, 3}, False, (-1, 18, (2,))),
        ({1: told(17, 2, 2)}, {1, 3}, True, (1, 18, (1,))),
        ({1: told(3, 1, 1), 2: told(3, 1, 1, 2, 3, partition_epoch=4)}, {1, 2, 3}, False, (1, 4, (1,))),
        ({1: log(5, 90), 2: log(17, 20), 3: log(17, 30)}, {1, 2, 3}, False, (3, 18, (3,))),
        ({1: log(5, 90), 2: log(17, 20)}, {1, 2}, False, (-1, 18, (1, 2, 3))),
        ({1: log(5, 90), 2: log(17, 20)}, {1, 2}, True, (2, 18, (2,))),
        ({1: told(5, 3, 3, 1), 2: log(17, 20), 3: NOTHING}, {1, 2, 3}, False, (2, 18, (2,))),
        # The replicas were moved since: other brokers have the later log.
        ({1: NOTHING, 2: NOTHING, 4: told(17, 4, 4, 5)}, {1, 2, 4, 5}, False, (4, 18, (4,))),
        ({1: NOTHING, 2: NOTHING, 3: NOTHING, 5: log(4, 30)}, {1, 2, 3, 5}, False, (5, 5, (5,))),
        ({1: log(9, 5), 2: NOTHING, 3: NOTHING, 5: log(4, 30)}, {1, 2, 3, 5}, False, (1, 10, (1,))),
    ],
)
def test_who_leads(
    known: dict[int, Known], live: set[int], unclean: bool, after: tuple[int, int, tuple[int, ...]]
) -> None:
    """The newest state of any broker decides the leader; if only logs know more, the best log wins once all replicas
    are live."""
    state, _ = restored(STORE, known, live, unclean=unclean)
    assert (state.leader, state.leader_epoch, state.isr) == after


@with_each(
    ("known", "ahead"),
    [
        (told(3, 1, 1, 2, 3, partition_epoch=4), False),
        (told(3, 1, 3, 1, 2, partition_epoch=4), False),
        (told(3, 1, 1, 2, partition_epoch=4), True),
        (told(3, 1, 1, 2, partition_epoch=3), False),
        (told(3, 1, partition_epoch=4), False),
        (told(3, 2, partition_epoch=3), True),
        (told(3, -1, partition_epoch=4), False),
        (told(2, 2, 2, partition_epoch=9), False),
    ],
)
def test_epochs_that_were_given_again(known: Known, ahead: bool) -> None:
    """A leader epoch has one leader, and a partition epoch one ISR: another one is from a history that was lost."""
    assert is_ahead(known, STORE) is ahead


def test_the_leader_knows_its_isr() -> None:
    """Among states with the same epochs, that of the leader itself counts."""
    heard = {1: told(4, 2, 2, 3), 2: told(4, 2, 2), 3: told(4, 2, 2, 3)}
    assert restored(STORE, heard, {1, 2, 3}, unclean=False)[0][1:4] == (2, 5, (2,))
    assert restored(STORE, {1: told(4, 2, 2, 3), 3: told(4, 3, 3)}, {1, 3}, unclean=False)[0][1:4] == (3, 5, (3,))


def test_a_state_that_is_missing() -> None:
    """A missing state was lost if there are logs, and then all replicas may know more; without logs the partition is
    new."""
    assert not is_ahead(NOTHING, MISSING) and is_ahead(log(-1, 1), MISSING) and is_ahead(log(0, 0), MISSING)
    state, doubted = restored(MISSING, {1: log(0, 5), 2: NOTHING}, {1, 2}, unclean=False)
    assert doubted and state[1:4] == (-1, 1, (1, 2, 3))
    state, doubted = restored(MISSING, {1: log(0, 5), 2: NOTHING, 3: log(0, 6)}, {1, 2, 3}, unclean=False)
    assert not doubted and state[1:4] == (3, 1, (3,))


def test_what_is_doubted_is_not_what_was_told() -> None:
    """A doubted state that brokers received, without a leader and with every replica in its ISR, does not replace the
    comparison of their logs."""
    waiting = PartitionState((1, 2, 3), -1, 18, (1, 2, 3), 1, 5)
    heard = {1: told(18, -1, 1, 2, 3), 3: told(18, -1, 1, 2, 3)._replace(log_epoch=17)}
    state, doubted = restored(waiting, heard, {1, 3}, unclean=False, doubted=True)
    assert doubted and state.leader == -1
    state, doubted = restored(waiting, heard | {2: log(16, 99)}, {1, 2, 3}, unclean=False, doubted=True)
    assert not doubted and (state.leader, state.leader_epoch, state.isr) == (3, 19, (3,))
