"""Decisions about fetch sessions: when one is created or replaced, and how epochs continue."""

from __future__ import annotations

import itertools

import pytest

from pybroker import errors
from pybroker.errors import KafkaError
from tests.oracle.fetch_sessions import EPOCH_MAX, IDLE_SECONDS, Key, News, Sessions, Wanted

QUIET = News(has_records=False, error_code=0, high_watermark=5, log_start_offset=0)


def wanted(count: int) -> dict[Key, Wanted]:
    return {Key("t", n): Wanted(0, 100, -1, -1) for n in range(count)}


def sessions(slots: int) -> Sessions:
    return Sessions(slots, itertools.count(1).__next__)


def begin(s: Sessions, count: int, now: float = 0.0) -> int:
    return s.begin(0, 0, False, wanted(count), [], now).session_id


def test_without_room_a_fetch_is_a_full_one() -> None:
    """Without room a Fetch gets session id 0, which declines a session."""
    assert begin(sessions(0), 3) == 0


def test_an_idle_session_gives_way_and_a_used_one_does_not() -> None:
    """A new session replaces one that is idle for longer than IDLE_SECONDS, and no recently used one."""
    s = sessions(1)
    first = begin(s, 3)
    assert begin(s, 3, now=IDLE_SECONDS) == 0
    second = begin(s, 3, now=IDLE_SECONDS + 1)
    assert second not in (0, first) and len(s) == 1
    with pytest.raises(KafkaError) as gone:
        s.begin(first, 1, False, {}, [], 0)
    assert gone.value.code == errors.FETCH_SESSION_ID_NOT_FOUND


def test_a_larger_session_replaces_an_old_smaller_one() -> None:
    """A larger session replaces an old smaller one, and neither a young one nor one of equal size."""
    s = sessions(2)
    small, large = begin(s, 1), begin(s, 5)
    assert begin(s, 3, now=IDLE_SECONDS) == 0
    now = IDLE_SECONDS + 1
    for epoch, at in ((1, IDLE_SECONDS), (2, now)):
        for session in (small, large):
            s.begin(session, epoch, False, {}, [], at)
    assert begin(s, 1, now) == 0
    third = begin(s, 3, now)
    assert third not in (0, small, large)
    assert s.begin(large, 3, False, {}, [], now).session_id == large


def test_epochs_go_round_past_the_largest_to_one() -> None:
    s = sessions(1)
    session_id = begin(s, 1)
    s._sessions[session_id].epoch = EPOCH_MAX
    s.begin(session_id, EPOCH_MAX, False, {}, [], 0)
    assert s.begin(session_id, 1, False, {}, [], 0).session_id == session_id


def test_a_session_without_partitions_ends() -> None:
    s = sessions(1)
    session_id = begin(s, 1)
    assert s.begin(session_id, 1, False, {}, [Key("t", 0)], 0).session_id == 0
    assert len(s) == 0


def test_partitions_that_brought_records_have_their_turn_last() -> None:
    """Partitions that brought records move to the end, so that a full answer does not always omit the same ones."""
    s = sessions(1)
    session_id = begin(s, 3)
    plan = s.begin(session_id, 1, False, {}, [], 0)
    plan.told([(key, QUIET) for key in list(plan.wanted)])
    plan = s.begin(session_id, 2, False, {}, [], 0)
    brought = QUIET._replace(has_records=True)
    told = plan.told([(key, brought if key.partition == 0 else QUIET) for key in list(plan.wanted)])
    assert told == [Key("t", 0)]
    assert [key.partition for key in plan.wanted] == [1, 2, 0]
