"""Which log is compacted next: how dirty one is, and whether that is enough. Kafka's rules (LogCleanerManager).

|<-- clean_bytes -->|<------ dirty_bytes ------>|<-- too young, not flushed, active -->|
                    first_dirty                 end
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

Segment = tuple[int, int, int]
"""(base offset, bytes, largest timestamp in ms or -1)"""


class Dirt(NamedTuple):
    """What a round would work on."""

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int

    @property
    def ratio(self) -> float:
        """The share of what is dirty, 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty(recorded: int | None, log_start: int, log_end: int) -> int:
    """Where the last round ended. A record that does not fit the log says nothing of it."""
    return log_start if recorded is None or not log_start <= recorded <= log_end else recorded


def dirt(segments: Sequence[Segment], start: int, bound: int, *, now_ms: int, min_lag_ms: int) -> Dirt:
    """How dirty a log is from its first dirty offset `start` on. What lies at or past `bound`, in the last segment, or
    from the first segment on that holds a record younger than min_lag_ms, has to wait."""
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
    """Whether there is something to compact, and enough of it or for long enough."""
    return dirt.dirty_bytes > 0 and (overdue or dirt.ratio > min_ratio)
