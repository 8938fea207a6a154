"""Bounded numbers of series: which topics and groups have series of their own, and which are summed as one.

A name keeps its series as long as it exists: a series that comes and goes has wrong rates. While there are too many
names, the largest of the others get the places that become free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

OTHER: Final = "(other)"
"""The label of the sum of all others. No topic is named so; a group that is counts among the others."""


class SeriesLimits(NamedTuple):
    """The most topics, groups and partitions with series of their own."""

    topics: int
    groups: int
    partitions: int


class Chosen:
    """The names with series of their own, `most` at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: set[str] = set()

    def among(self, sizes: Mapping[str, float]) -> set[str]:
        """Choose among the present names, given with their sizes."""
        self._kept &= sizes.keys()
        free = self._most - len(self._kept)
        if free > 0:
            rest = sizes.keys() - self._kept - {OTHER}
            if len(rest) > free:
                rest = set(sorted(rest, key=lambda name: (-sizes[name], name))[:free])
            self._kept |= rest
        return self._kept


class Totals:
    """Counters by name that never decrease: what a partition has counted stays after it is closed or removed."""

    def __init__(self, most: int) -> None:
        self._chosen = Chosen(most)
        self._last: dict[tuple[str, int], tuple[int, ...]] = {}
        self._sums: dict[str, list[int]] = {}
        self._other: list[int] = []

    def add(self, counts: Mapping[tuple[str, int], tuple[int, ...]], sizes: Mapping[str, float]) -> set[str]:
        """Take the present counts of each (topic, partition), and return the chosen topics. A count below the last one
        is that of a log which was opened again."""
        chosen = self._chosen.among(sizes)
        for key, now in counts.items():
            before = self._last.get(key)
            sums = self._of(key[0]) if key[0] in chosen else self._others(len(now))
            if not sums:
                sums.extend([0] * len(now))
            for at, count in enumerate(now):
                was = before[at] if before is not None else 0
                sums[at] += count - was if count >= was else count
        self._last = dict(counts)
        for name in self._sums.keys() - chosen:
            del self._sums[name]
        return chosen

    def _of(self, name: str) -> list[int]:
        return self._sums.setdefault(name, [])

    def _others(self, width: int) -> list[int]:
        if not self._other:
            self._other = [0] * width
        return self._other

    def sums(self) -> dict[str, list[int]]:
        """Return the counters of the chosen names, and of all others together if there ever were any."""
        return {**self._sums, OTHER: self._other} if self._other else dict(self._sums)
