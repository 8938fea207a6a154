"""A leader whose lease has lapsed is proven to lead by its followers' fetches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from pybroker import core
from tests.core.logs import Home

NEVER, ALWAYS = -1, (1 << 63) - 1
Fetch = Callable[..., None]


@pytest.fixture
def leader(home: Home) -> core.Partition:
    log = home.open()
    log.become_leader(3, 1, followers=[2, 4], isr=[2, 4])
    return log


def fetching(log: core.Partition, broker: int) -> Fetch:
    """A function that makes fetches of one follower, in session 7 unless another is given."""
    epochs = count(1)

    def fetch(now_ms: int, session: int = 7, epoch: int = 0, leader_epoch: int = 3) -> None:
        log.note_fetch(
            broker, 0, leader_epoch=leader_epoch, session=session, session_epoch=epoch or next(epochs), now_ms=now_ms
        )

    return fetch


def test_a_fetch_proves_when_the_second_one_before_it_came(leader: core.Partition) -> None:
    """A Fetch proves the arrival time of the second Fetch before it, as a follower has at most two in flight."""
    a, b = fetching(leader, 2), fetching(leader, 4)
    for now_ms in (10, 20, 30):
        a(now_ms)
    assert leader.proven_ms == NEVER, "the other broker in the ISR may lead"
    for now_ms in (11, 21):
        b(now_ms)
    assert leader.proven_ms == NEVER
    b(31)
    assert leader.proven_ms == 10
    b(41)
    a(42)
    assert leader.proven_ms == 20
    a(60, epoch=9)
    b(61, epoch=9)
    assert leader.proven_ms == 41, "fetches that did not name the partition lie between: one is answered"


def test_another_session_begins_anew(leader: core.Partition) -> None:
    """A new session starts the proof again, as requests of an earlier connection have no order with the new ones."""
    leader.set_isr([2], 3, 2)
    a = fetching(leader, 2)
    for now_ms in (10, 20, 30):
        a(now_ms)
    assert leader.proven_ms == 10
    a(40, session=8, epoch=1)
    assert leader.proven_ms == NEVER
    a(50, session=8, epoch=2)
    assert leader.proven_ms == NEVER
    a(60, session=8, epoch=3)
    assert leader.proven_ms == 40
    a(70, session=0, epoch=0)
    assert leader.proven_ms == NEVER, "a fetch without a session"
    a(80, session=8, epoch=9)
    a(90, session=8, epoch=2)
    assert leader.proven_ms == NEVER, "the session's epochs began again"


def test_who_is_alone_in_the_isr_needs_nobody(leader: core.Partition) -> None:
    assert leader.proven_ms == NEVER
    leader.set_isr([], 3, 2)
    assert leader.proven_ms == ALWAYS
    leader.become_follower(2, 4, 3)
    assert leader.proven_ms == NEVER


def test_another_leader_epoch_begins_anew(leader: core.Partition) -> None:
    leader.set_isr([2], 3, 2)
    a = fetching(leader, 2)
    for now_ms in (10, 20, 30):
        a(now_ms)
    leader.become_leader(3, 3, followers=[2, 4], isr=[2])
    assert leader.proven_ms == 10, "in the same leader epoch what is recorded of the follower stays"
    leader.become_leader(4, 4, followers=[2, 4], isr=[2])
    assert leader.proven_ms == NEVER
    with pytest.raises(core.LogError):
        a(40)
    assert leader.proven_ms == NEVER
