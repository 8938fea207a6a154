"""What is read when: ranges cut for tasks, and how much of what is there a trigger takes. No broker, no clock.

The rules are those of Spark's own connector, so that a job that was tuned for it behaves the same.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from pybroker.model import TopicPartition
from pybroker.spark.offsets import Offsets


class Range(NamedTuple):
    """Records of one partition: from `start` on, before `end`."""

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


def ranges(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
    """What lies between two sets of offsets, without what is empty; a partition that has no start is no range."""
    return [
        Range(tp.topic, tp.partition, start[tp], until)
        for tp, until in sorted(end.items())
        if tp in start and until > start[tp]
    ]


def split(whole: Iterable[Range], *, min_partitions: int | None, max_records: int | None) -> list[Range]:
    """The ranges cut so that none has more than `max_records`, and so that there are about `min_partitions`.

    Big ranges are cut more often, in proportion; the number is approximate, as it is with Spark's connector."""
    parts = [piece for r in whole for piece in _cut(r, 1 if max_records is None else -(-r.size // max_records))]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(part.size for part in parts)
    return [
        piece for part in parts for piece in _cut(part, min(part.size, round(part.size / total * min_partitions) or 1))
    ]


def _cut(whole: Range, pieces: int) -> list[Range]:
    """A range in pieces whose sizes differ by one at most."""
    bounds = [whole.start + whole.size * at // pieces for at in range(pieces + 1)]
    return [whole._replace(start=low, end=high) for low, high in pairwise(bounds) if high > low]


def limit(start: Offsets, latest: Offsets, max_offsets: int) -> Offsets:
    """As much of what is new as `max_offsets` allow, shared out by how much each partition has; at least one each."""
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
    """Whether a trigger takes nothing yet: fewer than `min_offsets` are new, and the last one was not long ago."""
    new = sum(max(0, end - start.get(tp, end)) for tp, end in latest.items())
    return new < min_offsets and since_last_s < max_trigger_delay_s


def bounded(latest: Offsets, target: Offsets) -> Offsets:
    """The latest offsets of a run that is to end at `target`: later records, and later partitions, are not its own."""
    return {tp: min(end, target[tp]) for tp, end in latest.items() if tp in target}


class Lost(NamedTuple):
    """Records that a read was to have and that are gone; `why` completes a sentence that begins with the partition."""

    tp: TopicPartition
    why: str


def overtaken(whole: Iterable[Range], earliest: Mapping[TopicPartition, int]) -> dict[Range, tuple[Lost, Range]]:
    """The ranges whose beginning is gone, for retention or DeleteRecords overtook the reader, and what is left of them,
    which may be nothing."""
    found = {}
    for r in whole:
        first = earliest[r.tp]
        if first > r.start:
            why = f"was to be read from offset {r.start} to {r.end}, and begins at {first} now"
            found[r] = (Lost(r.tp, why), r._replace(start=min(first, r.end)))
    return found


def vanished(was: Offsets, now: Offsets) -> list[Lost]:
    """The partitions that were read up to an offset which they do not have, or which are not there: a topic was
    deleted, and perhaps made anew."""
    found = []
    for tp, offset in sorted(was.items()):
        end = now.get(tp)
        if end is None:
            found.append(Lost(tp, f"was read up to offset {offset}, and is not there now"))
        elif end < offset:
            found.append(Lost(tp, f"was read up to offset {offset}, and ends at {end} now"))
    return found


ANEW: Final = "belongs to a topic that was deleted and created anew"


def of_another_topic(offsets: Offsets, was: Mapping[str, str], now: Mapping[str, str]) -> Offsets:
    """Those of the offsets whose topic has another id now; a topic whose id is not known is taken for the same."""
    others = {topic for topic in was.keys() & now.keys() if was[topic] != now[topic]}
    return {tp: at for tp, at in offsets.items() if tp.topic in others}


def with_new_partitions(begin: Offsets, end: Offsets) -> Offsets:
    """The starts of a batch: a partition that came after the one before is read from its first record."""
    return {tp: begin.get(tp, 0) for tp in end}
