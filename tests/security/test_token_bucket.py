"""The token bucket of KIP-599: bursts, debts, and the long-term rate."""

from __future__ import annotations

import pytest

from pybroker.security.token_bucket import TokenBucket


def test_as_kafka_counts() -> None:
    """The bucket counts as Kafka 3.9.1, which at a rate of one a second created three of four requested topics of five
    partitions."""
    bucket, made = TokenBucket(1, 1000), 0
    for _ in range(4):
        if not bucket.is_exceeded(1000):
            bucket.record(5, 1000)
            made += 1
    assert (made, bucket.throttle_ms(1000)) == (3, 4000)
    assert bucket.throttle_ms(4999) == 1 and bucket.is_exceeded(4999)
    assert bucket.throttle_ms(5000) == 0 and not bucket.is_exceeded(5000)


def test_the_rate_in_the_long_run() -> None:
    bucket, now, done = TokenBucket(20, 0), 0, 0
    while now < 600_000:
        bucket.record(7, now)
        done += 7
        now += max(1, bucket.throttle_ms(now))
    assert done == pytest.approx(20 * 600, rel=0.03)


def test_what_was_not_done_is_given_back_and_no_more_than_the_burst_is_kept() -> None:
    bucket = TokenBucket(2, 0)
    bucket.record(30, 0)
    bucket.record(-30, 0)
    assert bucket.is_full(0)
    bucket.record(-100, 0)
    bucket.record(22, 0)
    assert not bucket.is_exceeded(0)
    bucket.record(1, 0)
    assert bucket.is_exceeded(0) and bucket.throttle_ms(0) == 500
    assert bucket.is_full(3_600_000)
    bucket.set_rate(1, 3_600_000)
    bucket.record(12, 3_600_000)
    assert bucket.throttle_ms(3_600_000) == 1000


def test_a_clock_that_goes_back_and_a_rate_of_nothing() -> None:
    bucket = TokenBucket(1, 10_000)
    bucket.record(12, 10_000)
    assert bucket.throttle_ms(0) == 1000
    nothing = TokenBucket(0, 0)
    assert not nothing.is_exceeded(0)
    nothing.record(1, 0)
    assert nothing.throttle_ms(10**9) == 11_000
