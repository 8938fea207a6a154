"""One partition of __consumer_offsets: the groups that live in it, loaded from its log and written to it.

    loading --all records read--> active --partition lost--> (dropped, every waiting request told)
                                         --its log is offline--> failed: whoever waits is told, as who asks later is

While it loads its groups answer COORDINATOR_LOAD_IN_PROGRESS; other partitions are not held up, for the reading is done
on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pybroker import core, errors
from pybroker.cluster.group import Group
from pybroker.cluster.offsets import Committed
from pybroker.errors import KafkaError
from pybroker.groups.records import Pair
from pybroker.model import TopicPartition
from pybroker.protocol.compression import compress


class OffsetsLog(Protocol):
    """The replica that a partition of the offsets topic is written to and read from."""

    @property
    def key(self) -> TopicPartition: ...
    @property
    def offline(self) -> bool: ...
    def partition(self) -> core.Partition: ...
    def pass_by(self, offset: int) -> int:
        """The offset behind the damage that a read met at `offset`. Raises core.LogError, OSError."""

    async def append(self, records: core.Bytes, now_ms: int) -> core.Appended: ...


@dataclass(slots=True)
class Entry:
    """One group, its offsets, and what the coordinator keeps beside them."""

    group: Group
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    unstable: set[TopicPartition] = field(default_factory=set)  # with an offset of a transaction that nobody ended
    since_ms: int = 0  # wall clock: when the group became what it is, for the expiry of offsets
    rebalanced_ms: int = -1  # wall clock: when its last rebalance began; -1 none since the broker's start
    alarm: Any = None  # the timer's handle
    alarm_ms: int = 0
    held_bytes: int = 0  # of its members, as the coordinator counted them last


class Shard:
    """The groups of one partition."""

    def __init__(
        self, index: int, replica: OffsetsLog, codec: int, deleted_topics: dict[str, None], wall_ms: Callable[[], int]
    ) -> None:
        self.index = index
        self.replica = replica
        self._codec = codec
        self._wall_ms = wall_ms
        self.deleted_topics = deleted_topics  # while it loads: their offsets are to be forgotten
        self.loading = True
        self.failure: str | None = None
        self.entries: dict[str, Entry] = {}
        self.writing = asyncio.Lock()
        """Held from a look at what is stored of a group until what follows is in the log, and known here."""

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

    async def write(self, pairs: Sequence[Pair]) -> int:
        """Append records in one batch; NONE or the error that a group's client is told. Under `writing`."""
        now_ms = self._wall_ms()
        squeeze = partial(compress, self._codec) if self._codec else None
        batch = core.build_batch(
            [(now_ms, key, value, ()) for key, value in pairs], attributes=self._codec, compress=squeeze
        )
        try:
            await self.replica.append(batch, now_ms)
        except (KafkaError, core.LogError) as problem:
            return CLIENT_ERRORS.get(problem.code, problem.code)
        except OSError:
            return errors.NOT_COORDINATOR
        return errors.NONE


CLIENT_ERRORS = {
    errors.UNKNOWN_TOPIC_OR_PARTITION: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_ENOUGH_REPLICAS: errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_LEADER_OR_FOLLOWER: errors.NOT_COORDINATOR,
    errors.KAFKA_STORAGE_ERROR: errors.NOT_COORDINATOR,
    errors.MESSAGE_TOO_LARGE: errors.INVALID_COMMIT_OFFSET_SIZE,
    errors.RECORD_LIST_TOO_LARGE: errors.INVALID_COMMIT_OFFSET_SIZE,
}
"""What an append to the log of groups failed with, and what that is to a group's client."""
