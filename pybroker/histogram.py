"""A histogram of durations, for metrics."""

from bisect import bisect_left
from typing import Final

BUCKETS_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds, inclusive; longer times are counted after the last."""


class Times:
    """A histogram of durations."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulated(self) -> list[tuple[float | None, int]]:
        """Return (upper bound, number of times up to it); the last bound is None, with the total."""
        total, steps = 0, []
        for bound, count in zip((*BUCKETS_SECONDS, None), self.counts, strict=True):
            total += count
            steps.append((bound, total))
        return steps
