"""Who is in sync with a leader: Kafka's rules as functions of what the leader knows of its followers.

    out   it was last caught up longer than replica.lag.time.max.ms ago, and is behind now
    in    it has all below the high watermark, and all before the start of the leader's epoch, and its broker is alive
"""

from collections.abc import Iterable
from typing import NamedTuple


class FollowerState(NamedTuple):
    """What a leader knows of a follower: where it fetches from (-1: it has not yet), when it was last caught up
    (monotonic; -1: never), the epoch of the broker that fetches (-1: it does not say)."""

    broker: int
    log_end: int
    caught_up_ms: int
    broker_epoch: int


def laggards(
    followers: Iterable[FollowerState], isr: Iterable[int], log_end: int, led_since_ms: int, now_ms: int,
    lag_ms_max: int,
) -> set[int]:  # fmt: skip
    """Those of the ISR who fell behind. One that has not fetched yet has time since the leader became it."""
    members = set(isr)
    return {
        follower.broker
        for follower in followers
        if follower.broker in members
        and follower.log_end != log_end
        and now_ms - max(follower.caught_up_ms, led_since_ms) > lag_ms_max
    }


def may_join(follower: FollowerState, high_watermark: int, epoch_start: int, registered_epoch: int | None) -> bool:
    """Is a follower in sync? `registered_epoch` is its broker's, None where it is not alive, -1: unknown.

    A fetch of an earlier life of the broker counts for nothing (KIP-903)."""
    if registered_epoch is None or follower.log_end < 0:
        return False
    if registered_epoch >= 0 and follower.broker_epoch >= 0 and follower.broker_epoch != registered_epoch:
        return False
    return follower.log_end >= high_watermark and follower.log_end >= epoch_start
