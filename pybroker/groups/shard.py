"""One partition of __consumer_offsets: its groups, loaded from its log and written to it.

    loading --all records read, and committed--> active --resigned--> (dropped: waiting requests get NOT_COORDINATOR)
                                                   --its log fails--> failed: all requests get NOT_COORDINATOR

While a partition loads, requests for its groups get COORDINATOR_LOAD_IN_PROGRESS. Loading runs on a thread, so other
partitions are not blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from pybroker.decisions.group import Group, State
from pybroker.decisions.offsets import Committed
from pybroker.model import TopicPartition
from pybroker.state_log.log import Pair, StateLog
from pybroker.state_log.shards import CoordinatedPartition
from pybroker.state_log.writer import Write, Writer


def loop_ms() -> int:
    """The running loop's time, the clock of sessions and rebalances."""
    return int(asyncio.get_running_loop().time() * 1000)


@dataclass(slots=True)
class GroupEntry:
    """One group, its committed offsets, and the coordinator's bookkeeping."""

    group: Group
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    unstable: set[TopicPartition] = field(default_factory=set)  # partitions with an offset of an open transaction
    since_ms: int = 0  # wall clock: when the group entered its state, for the expiry of offsets
    rebalanced_ms: int = -1  # wall clock: when its last rebalance began; -1 none since the broker's start
    alarm: asyncio.TimerHandle | None = None
    alarm_ms: int = 0
    excused_ms: int = 0  # how much its members' sessions were extended, because the timer fired late
    held_bytes: int = 0  # held by its members, when last counted
    writes: int = 0  # pending writes
    moving: dict[TopicPartition, int] = field(default_factory=dict)  # pending writes by partition
    ending: Write | None = None  # the pending write that deletes the group

    def places(self) -> list[TopicPartition]:
        """The partitions with a committed, unstable or pending offset."""
        return list(dict.fromkeys([*self.offsets, *sorted(self.unstable), *self.moving]))


class Shard(CoordinatedPartition):
    """The groups of one partition, under one leader epoch."""

    def __init__(self, index: int, replica: StateLog, writer: Writer) -> None:
        super().__init__(index, replica, writer)
        self.deleted_topics: dict[str, None] = {}  # topics deleted while this loads: their offsets are removed after
        self.entries: dict[str, GroupEntry] = {}

    def write(
        self,
        entry: GroupEntry,
        pairs: Sequence[Pair],
        settled: Callable[[bool], None],
        moving: Collection[TopicPartition] = (),
    ) -> Write:
        """Store records of a group; `moving` are the partitions of the offsets in them; `settled` as in Writer.write.
        """
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

        return self.writer.write(pairs, ended)

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
