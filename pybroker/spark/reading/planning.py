"""Plan reads: cut ranges for tasks, and limit what a trigger takes. No broker, no clock.

The rules are those of Spark's own connector, so a job tuned for it behaves the same.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from pybroker.model import TopicPartition
from pybroker.spark.offsets import Offsets


class OffsetRange(NamedTuple):
    """Records of one partition, from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Return the non-empty ranges between two sets of offsets; a partition without a start has no range."""
    return [
        OffsetRange(tp.topic, tp.partition, start[tp], until)
        for tp, until in sorted(end.items())
        if tp in start and until > start[tp]
    ]


def split(whole: Iterable[OffsetRange], *, min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Return the ranges, cut to at most `max_records` each, and into about `min_partitions`.

    Big ranges are cut more often, in proportion; the number is approximate, as with Spark's connector."""
    parts = [piece for r in whole for piece in _cut(r, 1 if max_records is None else -(-r.size // max_records))]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(part.size for part in parts)
    return [
        piece for part in parts for piece in _cut(part, min(part.size, round(part.size / total * min_partitions) or 1))
    ]


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Cut a range into pieces whose sizes differ by at most one."""
    bounds = [whole.start + whole.size * at // pieces for at in range(pieces + 1)]
    return [whole._replace(start=low, end=high) for low, high in pairwise(bounds) if high > low]


def limit(start: Offsets, latest: Offsets, max_offsets: int) -> Offsets:
    """Return ends that take at most `max_offsets` new records, shared in proportion to each partition's backlog; at
    least one record each."""
    waiting = {tp: end - start.get(tp, end) for tp, end in latest.items()}
    total = sum(size for size in waiting.values() if size > 0)
    if total <= max_offsets:
        return dict(latest)
    # A share is floor(max * size / total): whole numbers, so that no rounding of floats loses a record.
    return {
        tp: start[tp] + min(size, max(1, max_offsets * size // total)) if (size := waiting[tp]) > 0 else end
        for tp, end in latest.items()
    }


def waits_for_more(
    start: Offsets, latest: Offsets, *, min_offsets: int, since_last_s: float, max_trigger_delay_s: float
) -> bool:
    """True if a trigger waits: fewer than `min_offsets` records are new, and the last trigger was recent."""
    new = sum(max(0, end - start.get(tp, end)) for tp, end in latest.items())
    return new < min_offsets and since_last_s < max_trigger_delay_s


def bounded(latest: Offsets, target: Offsets) -> Offsets:
    """Return the latest offsets of a run that ends at `target`: without later records and later partitions."""
    return {tp: min(end, target[tp]) for tp, end in latest.items() if tp in target}


class Lost(NamedTuple):
    """Records that a read needs but that are gone; `why` continues a sentence that begins with the partition."""

    tp: TopicPartition
    why: str


def overtaken(
    whole: Iterable[OffsetRange], earliest: Mapping[TopicPartition, int]
) -> dict[OffsetRange, tuple[Lost, OffsetRange]]:
    """Return the ranges whose start retention or DeleteRecords has deleted, and the rest of each, which may be
    empty."""
    found = {}
    for r in whole:
        first = earliest[r.tp]
        if first > r.start:
            why = f"was to be read from offset {r.start} to {r.end}, but begins at {first} now"
            found[r] = (Lost(r.tp, why), r._replace(start=min(first, r.end)))
    return found


def vanished(was: Offsets, now: Offsets) -> list[Lost]:
    """Return the partitions that no longer exist, or end before the offset already read: the topic was deleted, and
    perhaps created again."""
    found = []
    for tp, offset in sorted(was.items()):
        end = now.get(tp)
        if end is None:
            found.append(Lost(tp, f"was read up to offset {offset}, but no longer exists"))
        elif end < offset:
            found.append(Lost(tp, f"was read up to offset {offset}, but ends at {end} now"))
    return found


ANEW: Final = "belongs to a topic that was deleted and created again"


def of_another_topic(offsets: Offsets, was: Mapping[str, str], now: Mapping[str, str]) -> Offsets:
    """Return the offsets whose topic has another id now; a topic with an unknown id counts as the same."""
    others = {topic for topic in was.keys() & now.keys() if was[topic] != now[topic]}
    return {tp: at for tp, at in offsets.items() if tp.topic in others}


def with_new_partitions(begin: Offsets, end: Offsets) -> Offsets:
    """Return the starts of a batch: a partition that is new since the batch before is read from its first record."""
    return {tp: begin.get(tp, 0) for tp in end}
