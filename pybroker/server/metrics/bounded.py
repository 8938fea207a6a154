"""Bounded numbers of series: which topics and groups have series of their own, and which are summed as one.

A name keeps its series as long as it exists: a series that comes and goes has wrong rates. While there are too many
names, the largest of the others get the places that become free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pybroker.model import TopicPartition

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
    """Counters by topic that never decrease: what a partition has counted stays after it is closed or removed."""

    def __init__(self, most: int, width: int) -> None:
        """`most`: topics with sums of their own; `width`: the number of counters."""
        self._chosen = Chosen(most)
        self._none = (0,) * width
        self._last: dict[TopicPartition, tuple[int, ...]] = {}
        self._sums: dict[str, list[int]] = {}
        self.whole = list(self._none)
        """The counters over all topics that ever were."""

    def add(self, counts: dict[TopicPartition, tuple[int, ...]], sizes: Mapping[str, float]) -> set[str]:
        """Take the present counts of each partition, and return the chosen topics. A count below the last one is that
        of a log which was opened again."""
        chosen = self._chosen.among(sizes)
        for topic in chosen:
            self._sums.setdefault(topic, list(self._none))
        if len(sizes) > len(chosen):
            self._sums.setdefault(OTHER, list(self._none))
        for key, now in counts.items():
            before = self._last.get(key, self._none)
            if now == before:
                continue
            sums = self._sums[key.topic if key.topic in chosen else OTHER]
            for at, (count, was) in enumerate(zip(now, before, strict=True)):
                grown = count - was if count >= was else count
                sums[at] += grown
                self.whole[at] += grown
        self._last = counts
        for name in self._sums.keys() - chosen - {OTHER}:
            del self._sums[name]
        return chosen

    def sums(self) -> dict[str, list[int]]:
        """Return the counters of the chosen topics, and of all others together if there ever were any."""
        return self._sums
