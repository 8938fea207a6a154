"""The results of one pass of a Fetch, partition by partition, and a Fetch that waits for more.

A Fetch may name 200,000 partitions: all work on them is done in shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pybroker import core, errors
from pybroker.model import DEBUGGING
from pybroker.protocol import messages as m
from pybroker.replication.replica import Replica
from pybroker.tasks import SHARE, in_shares


class PartitionName(NamedTuple):
    """A partition, as a client names it."""

    topic: str | bytes
    """The topic's name, or from Fetch v13 on its id."""
    partition: int


class WantedPartition(NamedTuple):
    """The offset and the size of a client's fetch of one partition."""

    fetch_offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start: int
    """The log start offset of the follower's own log."""


@dataclass(slots=True)
class PartitionRead:
    """The result of one pass in one partition; `replica` is None if it could not be read."""

    key: PartitionName
    wanted: WantedPartition
    replica: Replica | None
    answer: m.FetchResponse.Responses.Partitions
    end: int = -1
    """The end of the log that the reader saw."""
    leader_epoch: int = -1
    """The replica's leader epoch before the read."""

    @property
    def size(self) -> int:
        """The size of the records in bytes."""
        records = self.answer.records
        return 0 if records is None else len(records)

    @property
    def settled(self) -> bool:
        """True if the partition must be answered at once, however few bytes there are."""
        answer = self.answer
        return bool(answer.error_code) or answer.diverging_epoch is not None or answer.preferred_read_replica >= 0

    def drop(self) -> None:
        """Release the file that holds the records."""
        if isinstance(self.answer.records, core.Slice):
            self.answer.records.close()


class FetchingReplica(NamedTuple):
    """A follower and the epoch of its broker, -1 if the request has none; -1 and -1 for a consumer."""

    broker: int
    epoch: int
    refused: bool = False
    """The request came by a listener that is not for brokers."""
    rack: str = ""
    """The consumer's rack, if consumers may fetch from followers."""

    @property
    def to_log_end(self) -> bool:
        """True for followers, and for tools that compare replicas: they read uncommitted records, too."""
        return self.broker >= 0 or self.broker == DEBUGGING


def is_throttled(log: core.Partition, by: FetchingReplica) -> bool:
    """True if bytes for this follower count against the throttle: the log is throttled, the follower not in the ISR."""
    if by.broker < 0 or not log.leader_throttled:
        return False
    return not any(follower.broker == by.broker and follower.in_isr for follower in log.followers)


class Parked:
    """A fetch that waits for news of its partitions; appends of the native plane since the read count at once."""

    def __init__(self, reads: Sequence[PartitionRead], until: float, *, to_log_end: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = until
        self._to_log_end = to_log_end
        self._reads = reads
        self._news: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Wait until the first news, or until its deadline."""
        timer = self._loop.call_at(self._until, self.release)
        watched: list[Replica] = []
        try:
            async for share in in_shares(self._reads):
                for read in share:
                    if read.replica is not None:
                        watched.append(read.replica)
                        self._watch(read.replica, read.end)
            await self._news
            while len(watched) > SHARE:
                self._leave(watched, SHARE)
                await asyncio.sleep(0)
        finally:
            timer.cancel()
            self._leave(watched, len(watched))  # at most one share, unless the wait was cancelled

    def _watch(self, replica: Replica, end: int) -> None:
        replica.wait(self, to_log_end=self._to_log_end)
        if replica.gone or replica.log is None or self._end(replica.log) != end:
            self.release()

    def _leave(self, watched: list[Replica], most: int) -> None:
        for _ in range(min(most, len(watched))):
            watched.pop().leave(self)

    def _end(self, log: core.Partition) -> int:
        return log.log_end_offset if self._to_log_end else log.high_watermark

    def news(self, replica: Replica) -> None:
        self.release()

    def release(self) -> None:
        if not self._news.done():
            self._news.set_result(None)


async def drop(reads: Iterable[PartitionRead]) -> None:
    """Release all files that hold the records."""
    async for share in in_shares(reads):
        for read in share:
            read.drop()


def are_of_one_disk(one: PartitionRead, other: PartitionRead) -> bool:
    """True if two partitions, both with a replica here, are in the same log dir."""
    assert one.replica is not None and other.replica is not None
    return one.replica.directory == other.replica.directory


def replicated_bytes(reads: Iterable[PartitionRead], by: FetchingReplica) -> int:
    """Return the bytes that count against throttled replication."""
    if by.broker < 0:
        return 0
    logs = ((read.replica.log, read.size) for read in reads if read.replica is not None)
    return sum(size for log, size in logs if log is not None and is_throttled(log, by))


def ends_a_log(read: PartitionRead) -> bool:
    """True if the answer says that a client's offset is outside the log, or that its log diverges."""
    answer = read.answer
    outside = answer.error_code == errors.OFFSET_OUT_OF_RANGE or answer.diverging_epoch is not None
    return outside and read.replica is not None
