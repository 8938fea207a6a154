"""Batches of records from a consumer, up to given ends; and the newest records of all."""

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pybroker.cli.main import Failure
from pybroker.client.consuming.committed_offsets import MOVED_ON
from pybroker.client.consuming.consumer import Consumer, Record
from pybroker.client.consuming.damaged_records import DamagedRecords
from pybroker.client.consuming.group import RebalanceListener
from pybroker.client.net.group_offsets import OffsetAndMetadata
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

IDLE_MS: Final = 500
"""Milliseconds without records after which an empty batch is yielded, so that the caller can do other work."""

BATCH_RECORDS_MAX: Final = 2000
COMMIT_EVERY_S: Final = 1.0


def batches(
    consumer: Consumer,
    ends: Mapping[TopicPartition, int] | None,
    most: int | None,
    patience_s: float,
    meet: Callable[[DamagedRecords], object],
) -> Iterator[list[Record]]:
    """Yield batches up to the `ends` of the partitions, and at most this many records; None is no limit.

    `meet` skips damage, or raises. Failure if nothing is read for `patience_s` seconds before the
    ends.
    """
    left = most
    moved_s = time.monotonic()
    while left is None or left > 0:
        if ends is not None and _at_end(consumer, ends):
            return
        try:
            batch = consumer.poll(IDLE_MS, BATCH_RECORDS_MAX if left is None else min(left, BATCH_RECORDS_MAX))
        except DamagedRecords as damage:
            meet(damage)
            moved_s = time.monotonic()
            continue
        if batch:
            moved_s = time.monotonic()
        elif ends is not None and time.monotonic() - moved_s > patience_s and not _at_end(consumer, ends):
            raise Failure(f"nothing was read for {patience_s:g} s, and the end has not been reached")
        if ends is not None:
            batch = _before(consumer, batch, ends)
        if left is not None:
            left -= len(batch)
        yield batch


def _before(consumer: Consumer, batch: list[Record], ends: Mapping[TopicPartition, int]) -> list[Record]:
    """Return the records before the ends; seek and pause a partition that was read beyond its end."""
    beyond = {
        partition: ends[partition]
        for record in batch
        if record.offset >= ends[partition := TopicPartition(record.topic, record.partition)]
    }
    for partition, end in beyond.items():
        consumer.seek(partition, end)
        consumer.pause(partition)
    return [r for r in batch if r.offset < ends[TopicPartition(r.topic, r.partition)]] if beyond else batch


def _at_end(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """True if all assigned partitions are read to their ends; False while none is assigned."""
    assigned = consumer.assignment()
    return bool(assigned) and all(consumer.position(partition) >= ends[partition] for partition in assigned)


Offsets = dict[tuple[str, int], int | OffsetAndMetadata]


class WrittenCommits(RebalanceListener):
    """Commits the offsets of written records only: from time to time, before a rebalance, and at the end."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._next: Offsets = {}
        self._due_s = time.monotonic() + COMMIT_EVERY_S

    def written(self, batch: Iterable[Record]) -> None:
        for record in batch:
            self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + COMMIT_EVERY_S
            self._consumer.commit_async(dict(self._next))

    def skipped(self, partition: TopicPartition, next_offset: int) -> None:
        """Include skipped damage in the next commit, so that later members begin after it, too."""
        self._next[partition] = next_offset

    def on_partitions_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self._commit({p: self._next.pop(p) for p in partitions if p in self._next})

    def on_partitions_lost(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._next.pop(partition, None)

    def end(self) -> None:
        self._commit(self._next)

    def _commit(self, offsets: Offsets) -> None:
        """Commit, unless the group has moved on: then another member reads the records again, and none is lost."""
        try:
            if offsets:
                self._consumer.commit(offsets)
        except KafkaError as error:
            if error.code not in MOVED_ON:
                raise


def newest(records: Iterable[list[Record]], count: int) -> list[Record]:
    """Return the last `count` of all records by time; those of a partition keep their order."""
    latest: dict[tuple[str, int], int] = {}
    kept: list[tuple[int, int, Record]] = []
    arrival = itertools.count()
    for record in itertools.chain.from_iterable(records):
        partition = (record.topic, record.partition)
        moment = latest[partition] = max(latest.get(partition, -1), record.timestamp_ms)
        heapq.heappush(kept, (moment, next(arrival), record))
        if len(kept) > count:
            heapq.heappop(kept)
    return [record for _, _, record in sorted(kept)]
