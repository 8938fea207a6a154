"""Kafka's rules for the ISR, as functions of the leader's state of its followers.

    shrink   the follower was last caught up longer than replica.lag.time.max.ms ago, and is behind now
    expand   its log end is at or above the high watermark and the leader epoch's start offset; its broker is alive
"""

from collections.abc import Iterable
from typing import NamedTuple


class FollowerState(NamedTuple):
    """A leader's state of a follower: its fetch offset (-1: no fetch yet), the monotonic time when it was last caught
    up (-1: never), and the broker epoch in its fetches (-1: not sent)."""

    broker: int
    log_end: int
    caught_up_ms: int
    broker_epoch: int


def laggards(
    followers: Iterable[FollowerState], isr: Iterable[int], log_end: int, led_since_ms: int, now_ms: int,
    lag_ms_max: int,
) -> set[int]:  # fmt: skip
    """The ISR members that fell behind. The time of one that has not fetched yet counts from the leader's election."""
    members = set(isr)
    return {
        follower.broker
        for follower in followers
        if follower.broker in members
        and follower.log_end != log_end
        and now_ms - max(follower.caught_up_ms, led_since_ms) > lag_ms_max
    }


def may_join(follower: FollowerState, high_watermark: int, epoch_start: int, registered_epoch: int | None) -> bool:
    """True if a follower may join the ISR. `registered_epoch` is its broker's epoch; None: not alive, -1: unknown.

    A fetch from an earlier registration of the broker does not count (KIP-903)."""
    if registered_epoch is None or follower.log_end < 0:
        return False
    if registered_epoch >= 0 and follower.broker_epoch >= 0 and follower.broker_epoch != registered_epoch:
        return False
    return follower.log_end >= high_watermark and follower.log_end >= epoch_start
