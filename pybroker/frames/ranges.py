"""The start and end that a caller asked for, as offsets of each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Protocol

from pybroker import errors
from pybroker.errors import KafkaError

Point = int | str | datetime | timedelta
"""An offset, or -N: N records before the end; "earliest", "latest"; a time, UTC without a zone; how long ago."""
Bound = Point | Mapping[int, Point]
"""The same for all partitions, or one for each that is named."""
Ranges = dict[int, tuple[int, int]]
"""The first offset of each partition that is read, and the one before which reading ends."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class Within(NamedTuple):
    """The bounds of a query: records beyond them need not be read. None is no bound."""

    partitions: frozenset[int] | None = None
    first: int = 0
    end: int | None = None
    not_before_ms: int | None = None

    def also(self, name: str, operator: str, number: int) -> Within:
        """The same with a condition more: Eq, Lt, LtEq, Gt or GtEq a number. Of times, which are in no order, only the
        earliest counts."""
        if name == "partition":
            if operator != "Eq":
                return self
            mine = self.partitions
            return self._replace(partitions=frozenset((number,)) if mine is None else mine & {number})
        if name == "timestamp":
            later = operator in ("Eq", "Gt", "GtEq")
            return self._replace(not_before_ms=max(self.not_before_ms or 0, number)) if later else self
        least = {"Eq": number, "GtEq": number, "Gt": number + 1}.get(operator, 0)
        end = {"Eq": number + 1, "LtEq": number + 1, "Lt": number}.get(operator)
        if end is not None:
            end = max(0, end if self.end is None else min(self.end, end))
        return self._replace(first=max(self.first, least), end=self.end if end is None else end)

    def cut(self, source: OffsetSource, ranges: Ranges) -> Ranges:
        """The parts of ranges that a query needs."""
        found = {p: each for p, each in ranges.items() if self.partitions is None or p in self.partitions}
        late: dict[int, int | None] = {}
        if self.not_before_ms is not None and found:
            late = source.offsets_at(dict.fromkeys(found, max(0, self.not_before_ms)))
        made = {}
        for partition, (start, end) in found.items():
            first = end if partition in late and late[partition] is None else late.get(partition) or 0
            start = max(start, self.first, first)
            made[partition] = (start, end if self.end is None else min(end, self.end))
        return made


NO_BOUNDS: Final = Within()


class OffsetSource(Protocol):
    """The offsets of one topic, from brokers or a log directory."""

    def partitions(self) -> list[int]: ...
    def first_offsets(self, partitions: Sequence[int]) -> dict[int, int]: ...
    def end_offsets(self, partitions: Sequence[int]) -> dict[int, int]: ...
    def offsets_at(self, times_ms: Mapping[int, int]) -> dict[int, int | None]:
        """The first record that is not older than a time; None where there is none."""


def resolve(source: OffsetSource, partitions: Sequence[int] | None, start: Bound, end: Bound, now_ms: int) -> Ranges:
    """The range of each partition, those with nothing to read too.

    Raises ValueError for a partition that is not there and a point that is none, KafkaError OFFSET_OUT_OF_RANGE where
    records from `start` on are gone or were never written."""
    there = source.partitions()
    wanted = sorted(there if partitions is None else set(partitions))
    named = [*wanted, *(start if isinstance(start, Mapping) else ()), *(end if isinstance(end, Mapping) else ())]
    for partition in named:
        if partition not in there:
            raise ValueError(f"there is no partition {partition!r}; the topic has {_shown(there)}")
    first, last = source.first_offsets(wanted), source.end_offsets(wanted)
    starts = _offsets(source, {p: _point(start, p, EARLIEST) for p in wanted}, first, last, now_ms, "start")
    ends = _offsets(source, {p: _point(end, p, LATEST) for p in wanted}, first, last, now_ms, "end")
    for partition in wanted:
        if not first[partition] <= starts[partition] <= last[partition]:
            raise KafkaError(
                errors.OFFSET_OUT_OF_RANGE,
                f"partition {partition} has the offsets {first[partition]} to {last[partition] - 1}:"
                f" start {starts[partition]} is not among them",
            )
    return {p: (starts[p], max(starts[p], min(ends[p], last[p]))) for p in wanted}


def _shown(partitions: Sequence[int]) -> str:
    return f"{len(partitions)}, from 0 on" if partitions == [*range(len(partitions))] else f"partitions {partitions}"


def _point(bound: Bound, partition: int, otherwise: str) -> Point:
    return bound.get(partition, otherwise) if isinstance(bound, Mapping) else bound


def _offsets(
    source: OffsetSource, points: Mapping[int, Point], first: Mapping[int, int], last: Mapping[int, int],
    now_ms: int, what: str,
) -> dict[int, int]:
    found: dict[int, int] = {}
    times: dict[int, int] = {}
    for partition, point in points.items():
        if isinstance(point, datetime | timedelta):
            times[partition] = time_ms(point, now_ms)
        elif point == EARLIEST:
            found[partition] = first[partition]
        elif point == LATEST:
            found[partition] = last[partition]
        elif isinstance(point, int) and not isinstance(point, bool):
            found[partition] = point if point >= 0 else max(first[partition], last[partition] + point)
        else:
            raise ValueError(
                f"{what} is {point!r}: expected is earliest, latest, a datetime, a timedelta (so long ago), an offset,"
                " or a mapping of partitions to these"
            )
    if times:
        late = source.offsets_at(times)
        found |= {p: last[p] if late[p] is None else max(first[p], late[p] or 0) for p in times}
    return found


def time_ms(point: datetime | timedelta, now_ms: int) -> int:
    """A time in milliseconds since the epoch, 0 at least."""
    if isinstance(point, timedelta):
        return max(0, now_ms - point // timedelta(milliseconds=1))
    aware = point if point.tzinfo else point.replace(tzinfo=UTC)
    return max(0, (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
