"""Throttled replication (KIP-73): a leader withholds records and a follower stops fetching until the rate allows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import core
from pybroker.clock import monotonic_ms
from tests.core.following import Following, asked, forgotten
from tests.core.following import batch as copied
from tests.core.stage import FETCH, STUCK_MS, Client, Stage, batch
from tests.core.test_followers_fetch import INSIDE, Follower, brought, known, lead

RATE = 10_000
NO_LIMIT = 1 << 62
VALUE = bytes(1000)


class Throttled:
    """A quota bucket, and whether its limit is exceeded."""

    def __init__(self) -> None:
        self.bucket = core.QuotaBucket(RATE)

    def exhaust(self, ms: int = STUCK_MS) -> None:
        """Record so much that the bucket stays above its limit for `ms`."""
        self.bucket.record(10 * RATE + RATE * ms // 1000, monotonic_ms())

    @property
    def waits(self) -> bool:
        return self.bucket.wait(monotonic_ms()) > 0


@pytest.fixture
def throttled() -> Throttled:
    return Throttled()


# -- the leader --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path, throttled: Throttled) -> Iterator[Stage]:
    """A stage with broker 2 outside the ISR of all partitions; all but the last are throttled."""
    made = Stage(tmp_path, partitions=3, replica_listener=INSIDE, leader_throttle=throttled.bucket)
    for partition in made.partitions:
        lead(partition, isr=(3,))
        partition.append(batch(VALUE), now_ms=1)
        partition.throttle(leader=partition.partition < 2, follower=False)
    yield made
    made.close()


def given(answer: object) -> dict[int, int]:
    """The record bytes of each partition in an answer."""
    return {index: len(p.records) for index, p in brought(answer).items()}


def test_who_is_outside_the_isr_waits(stage: Stage, throttled: Throttled) -> None:
    """A throttled follower outside the ISR gets offsets but no records, and all records of unthrottled partitions."""
    throttled.exhaust()
    answer = Follower(stage).fetches({0: 0, 1: 0, 2: 0})
    assert [size > 0 for size in given(answer).values()] == [False, False, True]
    assert {p.error_code for p in brought(answer).values()} == {0}
    assert known(stage.log)[2] == (0, 77)
    throttled.bucket.set_limit(NO_LIMIT)
    assert all(given(Follower(stage).fetches({0: 0, 1: 0})).values())


def test_others_do_not_wait(stage: Stage, throttled: Throttled) -> None:
    """Neither a follower in the ISR nor a consumer is throttled."""
    throttled.exhaust()
    assert given(Follower(stage, 3).fetches({0: 0}))[0] > 0
    Follower(stage, 3).fetches({0: 1})
    consumer = Client(stage)
    consumer.fetch(0)
    stage.step()
    assert given(consumer.receive(FETCH, 12)[1])[0] > 0


@pytest.mark.parametrize("broker", [2, 3])
def test_what_is_given_counts(stage: Stage, throttled: Throttled, broker: int) -> None:
    """Throttled records sent to a follower outside the ISR count towards the limit, and others do not."""
    throttled.exhaust(ms=-50)
    Follower(stage, broker).fetches({2: 0})
    assert not throttled.waits
    Follower(stage, broker).fetches({0: 0})
    assert throttled.waits == (broker == 2)


def test_it_gets_no_more_at_once_than_is_allowed(tmp_path: Path) -> None:
    """A throttled follower gets no more bytes at once than allowed, but whole batches of partitions in turn."""
    bucket = core.QuotaBucket(150)
    stage = Stage(tmp_path, partitions=3, replica_listener=INSIDE, leader_throttle=bucket)
    for partition in stage.partitions:
        lead(partition, isr=(3,))
        partition.throttle(leader=True, follower=False)
        for _ in range(3):
            partition.append(batch(VALUE), now_ms=1)
    one = len(batch(VALUE))
    assert one < 1500 < 2 * one
    assert given(Follower(stage).fetches({0: 0, 1: 0, 2: 0})) == {0: one, 1: one, 2: 0}
    stage.close()


def test_a_fetch_that_waits_is_answered_once_it_may(stage: Stage, throttled: Throttled) -> None:
    throttled.exhaust(ms=300)
    follower = Follower(stage)
    follower.ask({0: 0}, max_wait_ms=STUCK_MS)
    assert follower.quiet()
    assert given(follower.receive_while(FETCH, 17, stage.step))[0] > 0


def test_a_session_is_told_later(stage: Stage, throttled: Throttled) -> None:
    """Records withheld in a session are sent by a later Fetch."""
    throttled.exhaust()
    follower = Follower(stage)
    answer = follower.fetches({0: 0, 2: 0}, session=(0, 0))
    assert given(answer)[0] == 0 < given(answer)[2]
    id = answer.session_id
    assert id > 0
    assert given(follower.fetches({2: 1}, session=(id, 1))) == {}
    throttled.bucket.set_limit(NO_LIMIT)
    assert given(follower.fetches({}, session=(id, 2)))[0] > 0


# -- the follower ------------------------------------------------------------------------------------------------------


@pytest.fixture
def following(tmp_path: Path, throttled: Throttled) -> Iterator[Following]:
    """A follower of two partitions, of which partition 0 is throttled."""
    made = Following(tmp_path, follower_throttle=throttled.bucket)
    made.partitions[0].throttle(leader=False, follower=True)
    yield made
    made.close()


def test_what_is_behind_is_left_out(following: Following, throttled: Throttled) -> None:
    """A throttled partition that is behind leaves the session, and Python gets its waiting time.

    Unthrottled partitions go on, and the partition returns at its old offset.
    """
    following.add()
    throttled.exhaust()
    request = following.turn({0: copied(value=VALUE), 1: copied()}, session=9)
    assert (forgotten(request), list(asked(request))) == ([0], [1])
    (event,) = following.events()
    assert event is not None and (event.kind, event.partition) == ("throttled", following.log)
    assert 0 < event.offset <= 1000
    following.fetcher.add(following.log, 5)
    request = following.turn({1: copied(offset=1)}, session=9)
    assert list(asked(request)) == [1], "nothing may be copied yet"
    assert [event.kind for event in following.events() if event is not None] == ["throttled"]
    throttled.bucket.set_limit(NO_LIMIT)
    following.fetcher.add(following.log, 5)
    request = following.turn({1: copied(offset=2)}, session=9)
    assert asked(request)[0][:2] == (5, 1)


def test_what_is_in_sync_goes_on(following: Following, throttled: Throttled) -> None:
    following.add()
    throttled.exhaust()
    request = following.turn({0: copied(value=VALUE), 1: copied()}, session=9, high_watermark=1)
    assert (forgotten(request), sorted(asked(request))) == ([], [0, 1])
    assert following.events() == []


@pytest.mark.parametrize(("index", "high_watermark", "counts"), [(0, 1, True), (0, 0, False), (1, 1, False)])
def test_what_is_copied_counts(
    following: Following, throttled: Throttled, index: int, high_watermark: int, counts: bool
) -> None:
    """Copied bytes of a throttled partition count unless it is in sync."""
    following.add()
    throttled.exhaust(ms=-50)
    following.turn({index: copied(value=VALUE)}, session=9, high_watermark=high_watermark)
    assert throttled.waits == counts


def test_a_leader_that_is_new_says_first_where_it_ends(following: Following, throttled: Throttled) -> None:
    """A throttled follower asks a new leader once for its log end, as acks=all would wait if it is in sync there."""
    throttled.exhaust()
    assert sorted(asked(following.add())) == [0, 1]
