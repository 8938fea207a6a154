"""Decides whether a log is due for compaction, by its dirty ratio. Kafka's rules (LogCleanerManager).

|<-- clean_bytes -->|<------ dirty_bytes ------>|<-- too young, not flushed, active -->|
                    first_dirty                 end
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

Segment = tuple[int, int, int]
"""(base offset, bytes, largest timestamp in ms or -1)"""


class Dirt(NamedTuple):
    """The part of a log that a round of compaction would clean."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int

    @property
    def ratio(self) -> float:
        """The dirty share of the bytes, 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty(recorded: int | None, log_start: int, log_end: int) -> int:
    """The offset where the last round ended; the log start if the recorded one is not within the log."""
    return log_start if recorded is None or not log_start <= recorded <= log_end else recorded


def dirt(segments: Sequence[Segment], start: int, bound: int, *, now_ms: int, min_lag_ms: int) -> Dirt:
    """The part of a log to clean from its first dirty offset `start` on. It ends at `bound`, at the last segment, or at
    the first segment with a record younger than min_lag_ms."""
    clean = dirty = 0
    end = start
    for (_, size, largest), (following, _, _) in pairwise(segments):
        if following <= start:
            clean += size
            continue
        if following > bound or (min_lag_ms > 0 and largest > now_ms - min_lag_ms):
            break
        dirty += size
        end = following
    return Dirt(start, end, clean, dirty)


def is_due(dirt: Dirt, *, min_ratio: float, overdue: bool) -> bool:
    """True if there are dirty bytes, and their share is above `min_ratio` or they are overdue."""
    return dirt.dirty_bytes > 0 and (overdue or dirt.ratio > min_ratio)
