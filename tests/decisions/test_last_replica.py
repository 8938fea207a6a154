"""The election among in-sync replicas that lost power: the longest log, of those that are alive."""

from __future__ import annotations

from itertools import product

from pybroker.decisions.image import PartitionState
from pybroker.decisions.last_replica import elected, is_unsure, missing
from pybroker.decisions.rollback import NOTHING, UNUSABLE, Known
from tests.rows import with_each

LAST = PartitionState((1, 2, 3), -1, 5, (1,), 1, 4)


def log(epoch: int, end: int) -> Known:
    return Known(5, 0, -1, (), epoch, end, power_lost=True)


@with_each(
    ("isr", "sure", "lost", "expected"),
    [
        ((1,), {2, 3}, {1}, True),
        ((1,), {2, 3}, set(), False),  # it is away: nobody may lead
        ((1, 2), {2}, {1}, False),  # the other has all that was acknowledged
        ((1, 2), {3}, {1, 2}, True),
        ((1, 2), set(), {2}, True),
    ],
)
def test_when_logs_are_compared(isr: tuple[int, ...], sure: set[int], lost: set[int], expected: bool) -> None:
    """Logs are compared if a member of the ISR that lost power is alive, and none that did not."""
    assert is_unsure(LAST._replace(isr=isr), sure, lost) == expected


@with_each(
    ("heard", "live", "leader"),
    [
        ({1: log(4, 90), 2: log(4, 100), 3: log(3, 300)}, {1, 2, 3}, 2),
        ({1: log(5, 90), 2: log(4, 100), 3: log(3, 300)}, {1, 2, 3}, 1),
        ({1: log(4, 100), 2: log(4, 100)}, {1, 2, 3}, 1),
        ({2: log(4, 100), 1: log(4, 90)}, {1}, 1),  # the other has died since it was heard
        ({1: NOTHING, 2: log(0, 1)}, {1, 2}, 2),
        ({1: UNUSABLE, 2: NOTHING}, {1, 2}, 2),
        ({1: UNUSABLE}, {1}, None),
        ({}, {1, 2, 3}, None),
        ({1: log(4, 1), 9: log(9, 9)}, {1, 9}, 1),  # not a replica
    ],
)
def test_the_longest_log_leads(heard: dict[int, Known], live: set[int], leader: int | None) -> None:
    """The latest epoch wins, then the longest log, then a member of the ISR; the winner is the whole ISR."""
    after = elected(LAST, heard, live)
    assert after == (None if leader is None else LAST._replace(leader=leader, isr=(leader,), leader_epoch=6))


def test_no_committed_record_is_lost_that_a_live_replica_has() -> None:
    """Each pair of a leader's log and a prefix of it, in one epoch or the epoch before: the winner has the other's
    records."""
    for ends in product(range(4), repeat=3):
        heard = {broker: log(4, end) for broker, end in enumerate(ends, 1)}
        after = elected(LAST, heard, {1, 2, 3})
        assert after is not None and ends[after.leader - 1] == max(ends)


def test_what_is_waited_for() -> None:
    assert missing(LAST, {1: log(4, 1), 3: log(4, 1)}) == [2]
