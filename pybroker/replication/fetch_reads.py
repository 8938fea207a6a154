"""The results of one pass of a Fetch, partition by partition, and a Fetch that waits for more.

A Fetch may name 200,000 partitions: all work on them is done in shares.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pybroker import core, errors
from pybroker.cluster.fetch_sessions import Key, News, Wanted
from pybroker.model import DEBUGGING
from pybroker.replication.replica import Replica
from pybroker.tasks import SHARE, in_shares


@dataclass(slots=True)
class Read:
    """The result of one pass in one partition; without a replica if it could not be read."""

    key: Key
    wanted: Wanted
    replica: Replica | None
    answer: Any
    end: int = -1
    """How far the reader saw."""
    leader_epoch: int = -1
    """Of the replica, before it was read."""

    @property
    def settled(self) -> bool:
        """True if it is answered at once, however few bytes there are."""
        answer = self.answer
        return bool(answer.error_code) or answer.diverging_epoch is not None or answer.preferred_read_replica >= 0

    @property
    def news(self) -> News:
        answer = self.answer
        return News(
            len(answer.records) > 0,
            answer.error_code,
            answer.high_watermark,
            answer.log_start_offset,
            answer.diverging_epoch is not None or answer.preferred_read_replica >= 0,
        )

    def drop(self) -> None:
        """Let go of the file that the records lie in."""
        if isinstance(self.answer.records, core.Slice):
            self.answer.records.close()


class Fetcher(NamedTuple):
    """A follower and the epoch of its broker, -1 if the request has none; -1 and -1 for a consumer."""

    broker: int
    epoch: int
    refused: bool = False
    """It comes by a listener that is not for brokers."""
    rack: str = ""
    """That a consumer is in, where consumers may fetch from followers."""

    @property
    def to_log_end(self) -> bool:
        """Followers and tools that compare replicas read what is not committed, too."""
        return self.broker >= 0 or self.broker == DEBUGGING


def is_throttled(log: core.Partition, by: Fetcher) -> bool:
    """Does what is given to this follower count against the throttle, and stop with it? Not if it is in the ISR."""
    if by.broker < 0 or not log.leader_throttled:
        return False
    return not any(follower.broker == by.broker and follower.in_isr for follower in log.followers)


class Parked:
    """A fetch that waits for news of its partitions; what the native plane appended since the read counts at once."""

    def __init__(self, reads: Sequence[Read], until: float, *, to_log_end: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = until
        self._to_log_end = to_log_end
        self._reads = reads
        self._news: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Return at the first news, or when its time is over."""
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
            self._leave(watched, len(watched))  # one share, unless it was cancelled

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


async def drop(reads: Iterable[Read]) -> None:
    """Let go of all files that records lie in."""
    async for share in in_shares(reads):
        for read in share:
            read.drop()


def are_of_one_disk(one: Read, other: Read) -> bool:
    """True if two partitions, both with a replica here, lie in the same log dir."""
    assert one.replica is not None and other.replica is not None
    return one.replica.directory == other.replica.directory


def replicated_bytes(reads: Iterable[Read], by: Fetcher) -> int:
    """Return the bytes that count against throttled replication."""
    if by.broker < 0:
        return 0
    logs = ((read.replica.log, len(read.answer.records)) for read in reads if read.replica is not None)
    return sum(size for log, size in logs if log is not None and is_throttled(log, by))


def ends_a_log(read: Read) -> bool:
    """True if the answer says that a client's offset is outside the log, or that its log diverges."""
    answer = read.answer
    outside = answer.error_code == errors.OFFSET_OUT_OF_RANGE or answer.diverging_epoch is not None
    return outside and read.replica is not None
