"""Search a topic for records: the newest, or from an offset or a time on, within limits.

Forward a search reads from its start. For the newest records it reads windows before the end, each four times as large
as the one before, so that a filter that matches often costs little. What a search may read is bounded by records, bytes
and seconds: a sentence says which of them ended it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from pybroker.client.consuming.consumer import Consumer, Record
from pybroker.client.consuming.damaged_records import DamagedRecords
from pybroker.console.filters import RecordFilter
from pybroker.errors import UNKNOWN_TOPIC_OR_PARTITION, KafkaError
from pybroker.model import TopicPartition, bytes_text

POLL_MS: Final = 100
POLL_RECORDS: Final = 500
NEWEST, OFFSET, TIME = "newest", "offset", "time"
STARTS: Final = (NEWEST, OFFSET, TIME)


class Limits(NamedTuple):
    """The most that one search reads."""

    records: int = 20_000
    size_bytes: int = 16 << 20
    seconds: float = 5.0


class Search(NamedTuple):
    """A question about the records of a topic; `at` is an offset or ms since the epoch, `partition` None is all."""

    topic: str
    partition: int | None
    start: str
    at: int
    most: int
    wanted: RecordFilter


class Found(NamedTuple):
    """The records that were found, how many were read for them, and sentences about what was not read."""

    records: list[Record]
    read: int
    notes: list[str]


class _Reading:
    """One search under way: what it has read, and what has ended it."""

    def __init__(self, limits: Limits, now_s: Callable[[], float]) -> None:
        self._limits = limits
        self._now_s = now_s
        self._deadline_s = now_s() + limits.seconds
        self._bytes = 0
        self.read = 0
        self.notes: list[str] = []
        self.limit = ""

    def count(self, record: Record) -> None:
        self.read += 1
        self._bytes += len(record.value or b"") + len(record.key or b"")

    def is_over(self) -> bool:
        """True if a limit is reached."""
        if self.read >= self._limits.records:
            self.limit = f"{self._limits.records:,} records were read"
        elif self._bytes >= self._limits.size_bytes:
            self.limit = f"{bytes_text(self._limits.size_bytes)} were read"
        elif self._now_s() >= self._deadline_s:
            self.limit = f"it took {self._limits.seconds:g} s"
        return bool(self.limit)

    def span(self, consumer: Consumer, spans: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Record]:
        """Yield the records of offsets from FIRST to before END of partitions, until a limit is reached."""
        todo = {tp: end for tp, (first, end) in spans.items() if first < end}
        if not todo:
            return
        consumer.assign(todo)
        consumer.resume(*todo)  # a partition of the span before stays paused
        for tp in todo:
            consumer.seek(tp, spans[tp][0])
        while todo and not self.is_over():
            try:
                batch = consumer.poll(POLL_MS, POLL_RECORDS)
            except DamagedRecords as damage:
                self.notes.append(f"{damage.partition}: {damage.what} cannot be read: {damage.reason}.")
                consumer.seek(damage.partition, damage.next_offset or damage.offset + 1)
                continue
            for record in batch:
                tp = TopicPartition(record.topic, record.partition)
                if tp in todo and record.offset < todo[tp]:
                    self.count(record)
                    yield record
                    if self.is_over():
                        return
            for tp in [tp for tp, end in todo.items() if consumer.position(tp) >= end]:
                del todo[tp]
                consumer.pause(tp)


def find(
    consumer: Consumer, search: Search, limits: Limits | None = None, now_s: Callable[[], float] = time.monotonic
) -> Found:
    """Return the records that a search finds, newest first for the newest, else as read. Raises KafkaError."""
    reading = _Reading(limits or Limits(), now_s)
    partitions = [TopicPartition(search.topic, p) for p in consumer.partitions_for(search.topic)]
    if search.partition is not None:
        partitions = [tp for tp in partitions if tp.partition == search.partition]
        if not partitions:
            words = f"topic {search.topic} has no partition {search.partition}"
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, words)
    first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    if search.start == NEWEST:
        records = _newest(reading, consumer, search, {tp: (first[tp], end[tp]) for tp in partitions})
    else:
        begin = _begin(consumer, search, first, end)
        records = []
        for record in reading.span(consumer, {tp: (begin[tp], end[tp]) for tp in partitions}):
            if search.wanted.matches(record):
                records.append(record)
                if len(records) >= search.most:
                    break
    if reading.limit and len(records) < search.most:
        words = "Choose a partition, an offset or a time to begin elsewhere"
        reading.notes.append(f"The search ended before it was through: {reading.limit}. {words}.")
    return Found(records, reading.read, reading.notes)


def _begin(
    consumer: Consumer, search: Search, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the offset where each partition is read first."""
    if search.start == OFFSET:
        return {tp: max(first[tp], search.at) for tp in first}
    times = consumer.offsets_for_times(dict.fromkeys(first, search.at))
    return {tp: end[tp] if there is None else there.offset for tp, there in times.items()}


def _newest(
    reading: _Reading, consumer: Consumer, search: Search, spans: Mapping[TopicPartition, tuple[int, int]]
) -> list[Record]:
    """Return the newest records by time: windows of each partition, from its end backwards."""
    found: list[Record] = []
    window, left = search.most, dict(spans)
    while any(first < end for first, end in left.values()) and not reading.is_over():
        part = {tp: (max(first, end - window), end) for tp, (first, end) in left.items()}
        found += [record for record in reading.span(consumer, part) if search.wanted.matches(record)]
        if len(found) >= search.most:
            break
        left = {tp: (first, part[tp][0]) for tp, (first, _) in left.items()}
        window *= 4
    found.sort(key=lambda record: (record.timestamp_ms, record.offset), reverse=True)
    return found[: search.most]
