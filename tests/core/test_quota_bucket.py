"""Quota arithmetic: equal to a slow model of Kafka's, exact at a steady rate, and safe with many threads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.core import QuotaBucket
from tests.core.slow_quota import SlowBucket
from tests.rows import with_each

EDGES = [999, 1000, 1001, 10_000, 10_999, 11_000, 30_000]
MS = st.one_of(st.integers(0, 30), st.integers(0, 1500), st.sampled_from(EDGES))
KINDS = ["record", "take", "throttle", "wait"]
EVENTS = st.lists(st.tuples(MS, st.sampled_from(KINDS), st.integers(0, 400_000)), max_size=80)


LIMITS, MOST_MS = st.sampled_from([1.0, 999.5, 50_000.0, 100_000.0, 1e12]), st.sampled_from([1000, (1 << 31) - 1])


@given(EVENTS, LIMITS, MOST_MS, st.booleans(), st.sampled_from([0, 0, 20]))
@settings(max_examples=400)
def test_as_kafkas(
    events: list[tuple[int, str, int]], limit: float, most_ms: int, paced: bool, burst_ms: int
) -> None:
    bucket = QuotaBucket(limit, throttle_ms_max=most_ms, paced=paced, burst_ms=burst_ms)
    model = SlowBucket(limit, most_ms, paced, burst_ms)
    now = 5_000_000
    for wait_ms, how, n in events:
        now += wait_ms
        arguments = (now,) if how in ("throttle", "wait") else (n, now)
        assert getattr(bucket, how)(*arguments) == getattr(model, how)(*arguments)


def test_what_kafka_answered() -> None:
    """A bucket gives the waits of Kafka 3.9.1 at 100 kB/s: ten requests of 100 kB pass, and later ones wait."""
    bucket = QuotaBucket(100_000)
    assert [bucket.record(100_000, 1000 + 20 * n) for n in range(10)] == [0] * 10
    now, told = 1213, []
    for _ in range(5):
        told.append(bucket.record(100_000, now))
        now += told[-1]
    assert told == pytest.approx([787, 1999, 2994, 3999, 4988], abs=220), "less what Kafka counts for a missing window"


@with_each("connections", [1, 5])
@with_each(("limit", "n"), [(1e6, 16_384), (250_000.0, 60_000), (50e6, 1_000_000), (100_000.0, 100_000)])
def test_whoever_waits_as_told_has_the_rate_over_any_ten_seconds(limit: float, n: int, connections: int) -> None:
    """A client that waits as asked has the rate over any ten seconds, even after a fast start."""
    bucket, following, done = QuotaBucket(limit), [10_000] * connections, []
    while min(following) < 80_000:
        now = min(following)
        done.append(now)
        following[following.index(now)] = now + max(1, bucket.record(n, now))
    for begin in range(10_000 + 25_000, 70_000, 500):
        came = sum(n for now in done if begin <= now < begin + 10_000)
        assert came == pytest.approx(limit * 10, rel=0.05, abs=n)
    assert len(done) * n == pytest.approx(limit * 70, rel=0.05, abs=connections * n), "from the start on, too"


def test_who_comes_a_little_late_loses_nothing() -> None:
    bucket, now, done = QuotaBucket(1e6), 10_000, []
    while now < 70_000:
        done.append(now)
        now += max(1, bucket.record(16_384, now)) + 7
    assert sum(16_384 for each in done if each >= 30_000) == pytest.approx(40e6, rel=0.02)


def test_who_comes_when_it_likes_has_ten_seconds_worth_again() -> None:
    bucket = QuotaBucket(1000)
    assert bucket.record(10_500, 10_000) == 500
    assert bucket.record(500, 10_500) == 1000, "a client that returns at once is held"
    assert bucket.record(9_500, 40_000) == 0, "a client that stayed away is free"


@with_each("limit", [5_000.0, 20e6])
def test_a_bucket_with_a_burst_has_the_rate_over_each_second(limit: float) -> None:
    """Even over the first, and after a rest."""
    bucket, now, done = QuotaBucket(limit, burst_ms=20), 10_000, []
    while now < 40_000:
        now = 30_000 if 20_000 <= now < 30_000 else now
        now += bucket.wait(now)
        done.append((now, bucket.most(now)))
        bucket.record(bucket.most(now), now)
        now += 1
    assert bucket.most(now) == limit * 0.02
    for begin in (*range(10_000, 19_000, 250), *range(30_000, 39_000, 250)):
        came = sum(n for when, n in done if begin <= when < begin + 1000)
        assert came == pytest.approx(limit, rel=0.25 if begin in (10_000, 30_000) else 0.03)


def test_fetches_are_of_a_quarter_of_a_second_while_they_are_held() -> None:
    bucket, now, done = QuotaBucket(1e6), 10_000, []
    while now < 60_000:
        n = min(4_000_000, bucket.most(now))
        throttle_ms, refused = bucket.take(n, now)
        if not refused:
            done.append((now, n))
        now += max(1, throttle_ms)
    assert done[0][1] == 4_000_000 and done[-1][1] == 250_000
    for begin in range(27_000, 50_000, 500):
        came = sum(n for at, n in done if begin <= at < begin + 10_000)
        assert came == pytest.approx(10e6, rel=0.05)


def test_what_was_refused_was_not_counted() -> None:
    bucket = QuotaBucket(50_000)
    assert bucket.take(400_000, 1000) == (0, False)
    throttle_ms, refused = bucket.take(200_000, 1000)
    assert (throttle_ms, refused) == (2000, True)
    assert bucket.take(100_000, 1000) == (2000, False), "there is room for it, and a held client pays for it"
    assert bucket.throttle(1000) == 2000


def test_what_is_larger_than_all_windows_is_done_once_nothing_else_was() -> None:
    """A batch above ten seconds' worth passes once nothing else was recorded; Kafka never returns such a batch."""
    bucket = QuotaBucket(10_000)
    assert bucket.take(300_000, 1000) == (20_000, False)
    assert bucket.take(300_000, 3000)[1]
    assert bucket.take(300_000, 1000 + 20_000) == (30_000, False), "and at its rate"


def test_another_limit_holds_at_once_and_what_was_done_stays_done() -> None:
    bucket = QuotaBucket(1e9)
    assert bucket.record(1_000_000, 1000) == 0
    bucket.set_limit(50_000)
    assert bucket.throttle(1000) == 10_000
    bucket.set_limit(100_000)
    assert bucket.throttle(1000) == 0
    bucket.set_limit(0)
    assert bucket.throttle(1000) == 11_000 and bucket.most(1000) == 0
    assert bucket.throttle(13_000) == 0


def test_limits() -> None:
    assert QuotaBucket(1).record(1 << 60, 0) == (1 << 31) - 1
    assert QuotaBucket(9e18).most(0) > 0
    for limit, most in ((-1.0, 5), (float("nan"), 5), (1.0, -1), (1.0, 1 << 31)):
        with pytest.raises(ValueError):
            QuotaBucket(limit, throttle_ms_max=most)


def test_many_threads_lose_nothing() -> None:
    """No use is lost while threads add to the newest sample and others begin the next."""
    bucket, each = QuotaBucket(1e6), 3000
    now = [0]

    def work() -> None:
        for n in range(each):
            now[0] = n
            bucket.record(10, n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bucket.set_limit(1.0)
    over = 4 * each * 10 - 10  # the limit is almost zero
    assert bucket.throttle(each) == pytest.approx(over * 1000, rel=0.001)
    assert bucket.throttled == (0, 0)
