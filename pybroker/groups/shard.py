"""One partition of __consumer_offsets: the groups that live in it, loaded from its log and written to it.

    loading --all records read, and committed--> active --resigned--> (dropped, every waiting request told)
                                                   --its log fails--> failed: whoever waits is told, as who asks later

While it loads its groups answer COORDINATOR_LOAD_IN_PROGRESS; other partitions are not held up, for the reading is done
on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pybroker import errors
from pybroker.cluster.group import Group, State
from pybroker.cluster.offsets import Committed
from pybroker.errors import KafkaError
from pybroker.groups.records import Pair
from pybroker.groups.writer import OffsetsLog, Write, Writer
from pybroker.model import TopicPartition


def loop_ms() -> int:
    """The clock of sessions and rebalances: the running loop's."""
    return int(asyncio.get_running_loop().time() * 1000)


@dataclass(slots=True)
class Entry:
    """One group, its offsets as they are committed, and what the coordinator keeps beside them."""

    group: Group
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    unstable: set[TopicPartition] = field(default_factory=set)  # with an offset of a transaction that nobody ended
    since_ms: int = 0  # wall clock: when the group became what it is, for the expiry of offsets
    rebalanced_ms: int = -1  # wall clock: when its last rebalance began; -1 none since the broker's start
    alarm: Any = None  # the timer's handle
    alarm_ms: int = 0
    excused_ms: int = 0  # how much longer its members got, because the timer fired late
    held_bytes: int = 0  # of its members, as the coordinator counted them last
    writes: int = 0  # of it, that are under way
    moving: dict[TopicPartition, int] = field(default_factory=dict)  # how many of them say where it stands in what
    ending: Write | None = None  # the one that removes it

    def places(self) -> list[TopicPartition]:
        """Where it stands, or may stand, or will once it is written."""
        return list(dict.fromkeys([*self.offsets, *sorted(self.unstable), *self.moving]))


class Shard:
    """The groups of one partition, under one leader epoch."""

    def __init__(self, index: int, replica: OffsetsLog, writer: Writer) -> None:
        self.index = index
        self.replica = replica
        self.writer = writer
        self.deleted_topics: dict[str, None] = {}  # while it loads: their offsets are to be forgotten
        self.loading = True
        self.loader: asyncio.Task[None] | None = None
        self.failure: str | None = None
        self.resigned = False
        self.entries: dict[str, Entry] = {}

    @property
    def failed(self) -> bool:
        """Its groups are not coordinated: its log could not be read, or takes no records any more."""
        return self.failure is not None or self.replica.offline

    def check(self) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS, or NOT_COORDINATOR where loading failed, or the log did since."""
        if self.failed:
            why = self.failure or "its log is offline"
            raise KafkaError(errors.NOT_COORDINATOR, f"__consumer_offsets-{self.index}: {why}")
        if self.loading:
            raise KafkaError(errors.COORDINATOR_LOAD_IN_PROGRESS, f"__consumer_offsets-{self.index} is being read")

    def write(
        self,
        entry: Entry,
        pairs: Sequence[Pair],
        settled: Callable[[bool], None],
        moving: Collection[TopicPartition] = (),
    ) -> Write:
        """Store records of a group, among them those of `moving`; `settled` as in Writer.write."""
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

    def is_over(self, entry: Entry) -> bool:
        """Has a group no members, offsets or pending ids, and will not have any once its writes are done?"""
        kept = entry.offsets or entry.unstable or entry.group.pending_members or entry.writes
        return entry.group.state is State.EMPTY and not kept and self.entries.get(entry.group.id) is entry

    def drop_if_nothing(self, entry: Entry) -> None:
        """A group that is over, and of which the log knows nothing, is forgotten."""
        if not entry.group.generation and self.is_over(entry):
            self.remove(entry)

    def remove(self, entry: Entry) -> None:
        entry.group.state = State.DEAD
        if entry.alarm is not None:
            entry.alarm.cancel()
        del self.entries[entry.group.id]
