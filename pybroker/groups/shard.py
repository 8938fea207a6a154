"""One partition of __consumer_offsets: its groups, loaded from its log and written to it.

    loading --all records read, and committed--> active --resigned--> (dropped: waiting requests get NOT_COORDINATOR)
                                                   --its log fails--> failed: all requests get NOT_COORDINATOR

While a partition loads, requests for its groups get COORDINATOR_LOAD_IN_PROGRESS. Loading runs on a thread, so other
partitions are not blocked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pybroker import core
from pybroker.decisions.group import Group, State
from pybroker.decisions.offsets import Committed
from pybroker.model import TopicPartition
from pybroker.state_log.log import ACKS_UNSAID, Pair, StateLog
from pybroker.state_log.shards import CoordinatedPartition
from pybroker.state_log.writer import Append, Write, Writer

TRANSACTIONAL = 0x10


def loop_ms() -> int:
    """The running loop's time, the clock of sessions and rebalances."""
    return int(asyncio.get_running_loop().time() * 1000)


class PendingOffset(NamedTuple):
    """An offset of an open transaction; `at` orders it among the writes of its partition."""

    committed: Committed
    at: int


@dataclass(slots=True)
class GroupEntry:
    """One group, its committed offsets, and the coordinator's bookkeeping."""

    group: Group
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    in_transaction: dict[int, dict[TopicPartition, PendingOffset]] = field(default_factory=dict)  # by producer id
    entering: Counter[TopicPartition] = field(default_factory=Counter)  # pending writes of transactions
    since_ms: int = 0  # wall clock: when the group entered its state, for the expiry of offsets
    rebalanced_ms: int = -1  # wall clock: when its last rebalance began; -1 none since the broker's start
    alarm: asyncio.TimerHandle | None = None
    alarm_ms: int = 0
    excused_ms: int = 0  # how much its members' sessions were extended, because the timer fired late
    held_bytes: int = 0  # held by its members, when last counted
    writes: int = 0  # pending writes
    moving: dict[TopicPartition, int] = field(default_factory=dict)  # pending writes by partition
    ending: Write | None = None  # the pending write that deletes the group

    @property
    def unstable(self) -> set[TopicPartition]:
        """The partitions with an offset of an open transaction."""
        return {*self.entering, *(key for offsets in self.in_transaction.values() for key in offsets)}

    def show(self, key: TopicPartition, committed: Committed | None, at: int) -> None:
        """Set a committed offset, or remove it. What open transactions wrote before it has no effect any more."""
        if committed is None:
            self.offsets.pop(key, None)
        else:
            self.offsets[key] = committed
        for producer_id, offsets in list(self.in_transaction.items()):
            if key in offsets and offsets[key].at < at:
                del offsets[key]
                if not offsets:
                    del self.in_transaction[producer_id]

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Show the offsets of a producer's transaction, or drop them."""
        for key, pending in self.in_transaction.pop(producer_id, {}).items():
            if commit:
                self.show(key, pending.committed, pending.at)

    def places(self) -> list[TopicPartition]:
        """The partitions with a committed, unstable or pending offset."""
        return list(dict.fromkeys([*self.offsets, *sorted(self.unstable), *self.moving]))


class InTransaction(NamedTuple):
    """The producer of offsets in a transaction, and the guard of the partition: see Partition.verify."""

    producer_id: int
    epoch: int
    guard: int

    def append(self, pairs: Sequence[Pair], shard: Shard) -> Append:
        """The append of a batch in the transaction. Its sequence is 0 each time, as in Kafka."""
        now_ms, replica = shard.writer.now_ms(), shard.replica
        batch = core.build_batch(
            [(now_ms, key, value, ()) for key, value in pairs], attributes=TRANSACTIONAL,
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=0,
        )  # fmt: skip
        return lambda epoch: replica.append(batch, now_ms, epoch, ACKS_UNSAID, self.guard, internal=True)


class Shard(CoordinatedPartition):
    """The groups of one partition, under one leader epoch."""

    def __init__(self, index: int, replica: StateLog, writer: Writer) -> None:
        super().__init__(index, replica, writer)
        self.deleted_topics: dict[str, None] = {}  # topics deleted while this loads: their offsets are removed after
        self.entries: dict[str, GroupEntry] = {}
        self._at = 0

    def begin(self, entries: dict[str, GroupEntry], end: int) -> None:
        """Take over the groups that were loaded from a log up to this offset."""
        self.entries, self._at, self.loading = entries, end, False

    def next_at(self) -> int:
        """The place of the next write among those of the partition: later than all offsets that were loaded."""
        self._at += 1
        return self._at

    def write(
        self,
        entry: GroupEntry,
        pairs: Sequence[Pair],
        settled: Callable[[bool], None],
        moving: Collection[TopicPartition] = (),
        by: InTransaction | None = None,
    ) -> Write:
        """Store records of a group; `moving` are the partitions of the offsets in them; `settled` as in Writer.write.
        `by`: in the transaction of this producer."""
        entry.writes += 1
        for key in moving:
            entry.moving[key] = entry.moving.get(key, 0) + 1

        def ended(in_log: bool) -> None:
            entry.writes -= 1
            for key in moving:
                entry.moving[key] -= 1
                if not entry.moving[key]:
                    del entry.moving[key]
            settled(in_log)

        return self.writer.write(pairs, ended) if by is None else self.writer.put(by.append(pairs, self), ended)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Show the offsets that a producer's transaction has in groups of this partition, or drop them."""
        for entry in [each for each in self.entries.values() if producer_id in each.in_transaction]:
            entry.end_transaction(producer_id, commit)
            self.drop_if_nothing(entry)

    def is_over(self, entry: GroupEntry) -> bool:
        """True if a group has no members, offsets, pending member ids or pending writes."""
        kept = entry.offsets or entry.unstable or entry.group.pending_members or entry.writes
        return entry.group.state is State.EMPTY and not kept and self.entries.get(entry.group.id) is entry

    def drop_if_nothing(self, entry: GroupEntry) -> None:
        """Forget a group that is over and was never stored in the log."""
        if not entry.group.generation and self.is_over(entry):
            self.remove(entry)

    def remove(self, entry: GroupEntry) -> None:
        entry.group.state = State.DEAD
        if entry.alarm is not None:
            entry.alarm.cancel()
        del self.entries[entry.group.id]
