"""Charts as SVG, for a template: points and words, no markup of their own."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pybroker.console.lags import LagSample
from pybroker.operations.times import time_text

WIDTH: Final = 720
HEIGHT: Final = 160
POINTS_MIN: Final = 2
GAP_SAMPLES: Final = 3
"""A line is interrupted where more than this many samples are missing."""


class LagChart(NamedTuple):
    """A chart of a lag over time: lines of points in a box of WIDTH x HEIGHT, the words of its corners, and a sentence
    that says the same to a screen reader."""

    lines: tuple[str, ...]
    most: int
    first: str
    last: str
    words: str
    width: int = WIDTH
    height: int = HEIGHT


def lag_chart(samples: Sequence[LagSample], interval_s: float) -> LagChart | None:
    """Return the chart of samples, oldest first; None if there are too few."""
    if len(samples) < POINTS_MIN:
        return None
    begin_ms, end_ms = samples[0].at_ms, samples[-1].at_ms
    most, span_ms = max(each.lag for each in samples), max(1, end_ms - begin_ms)
    lines: list[list[str]] = []
    before_ms: int | None = None
    for at_ms, lag in samples:
        if before_ms is None or at_ms - before_ms > GAP_SAMPLES * interval_s * 1000:
            lines.append([])
        x, y = WIDTH * (at_ms - begin_ms) / span_ms, HEIGHT * (1 - lag / max(1, most))
        lines[-1].append(f"{x:.1f},{y:.1f}")
        before_ms = at_ms
    first, last = samples[0].lag, samples[-1].lag
    words = f"Lag from {first:,} to {last:,}, {most:,} at most, in {span_ms // 60_000:,} min {span_ms // 1000 % 60} s"
    return LagChart(tuple(map(" ".join, lines)), most, time_text(begin_ms), time_text(end_ms), words)
