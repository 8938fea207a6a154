"""The consumer for asyncio: the same client, its waiting done by the event loop.

A `poll` that is cancelled loses no record: what it had found already, the next one returns.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack

from pybroker import errors
from pybroker.client.arguments import whole
from pybroker.client.beside import beside
from pybroker.client.committed import OffsetAndMetadata
from pybroker.client.consumer import Consumer, OffsetAndTimestamp, Partition
from pybroker.client.group import RebalanceListener
from pybroker.client.settings import ConsumerSettings
from pybroker.core import COLUMNS, Record
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pybroker.client.arrays import RecordArrays

__all__ = ["AsyncConsumer"]

Result = TypeVar("Result")

_LOOK_S: Final = 0.1  # how long a poll waits before it looks whether there is something to do for the group


class AsyncConsumer:
    """`pybroker.Consumer` for asyncio; the settings are the same. Use it in an `async with`, or `await close()`.

    The methods are the consumer's. Calls that may wait run on one thread, in their order; so do the calls of a
    rebalance listener."""

    def __init__(self, **settings: Unpack[ConsumerSettings]) -> None:
        self.consumer = Consumer(**settings)
        self._network = self.consumer._network
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pybroker-async-consumer")
        self._ending = self._ended = False
        self._rung = asyncio.Event()
        self._found: dict[Callable[..., Any], asyncio.Future[Any]] = {}
        """Calls whose callers were cancelled, by what was called."""

    async def __aenter__(self) -> "AsyncConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, timeout_ms: int | None = None) -> None:
        """Commit where that is automatic, leave the group, and end. Calling it again does nothing.

        Calls that wait for a broker end with KafkaError: the time of this one begins now."""
        if self._ended or self._network.was_forked:
            return
        until_s = None if timeout_ms is None else time.monotonic() + whole(timeout_ms, "timeout_ms") / 1000
        self._ending = True
        await beside(self._executor, self._close, until_s)
        self._ended = True
        self._executor.shutdown(wait=False)

    def _close(self, until_s: float | None) -> None:
        """On the thread: the calls before it took some of the time."""
        self.consumer.close(None if until_s is None else max(0, int((until_s - time.monotonic()) * 1000)))

    def _check_open(self) -> None:
        """Raise KafkaError after close(), and in a forked process, because the thread is the parent's."""
        self._network.check_usable()
        if self._ending:
            raise KafkaError(errors.INVALID_REQUEST, "the consumer is closed")

    async def _call(self, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Make a call on the thread, which stops waiting for a broker when the caller is cancelled, or the consumer is
        closed: calls behind it wait no longer."""
        self._check_open()
        over = threading.Event()
        try:
            return await beside(self._executor, self._made, over, partial(call, *arguments, **named))
        finally:
            over.set()

    def _made(self, over: threading.Event, call: Callable[[], Result]) -> Result:
        """On the thread."""
        self._check_open()
        self._network.given_up = lambda: over.is_set() or self._ending
        try:
            return call()
        finally:
            self._network.given_up = lambda: False

    # -- what is read --------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share these topics, or those that a regular expression is found in, with the group."""
        await self._call(self.consumer.subscribe, topics, pattern=pattern, listener=listener)

    async def unsubscribe(self) -> None:
        """Leave the group and read nothing."""
        await self._call(self.consumer.unsubscribe)

    def subscription(self) -> set[str]:
        """The topics that are shared with the group."""
        return self.consumer.subscription()

    async def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions, and no others."""
        await self._call(self.consumer.assign, partitions)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return self.consumer.assignment()

    async def pause(self, *partitions: Partition) -> None:
        """Return nothing of these until `resume`."""
        await self._call(self.consumer.pause, *partitions)

    async def resume(self, *partitions: Partition) -> None:
        """Go on with these where they were paused."""
        await self._call(self.consumer.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions of which nothing is returned until `resume`."""
        return self.consumer.paused()

    # -- positions -----------------------------------------------------------------------------------------------------

    async def seek(self, partition: Partition, offset: int) -> None:
        """Read this partition from an offset on. ValueError if it is not assigned or the offset is negative."""
        await self._call(self.consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: Partition) -> None:
        """Read these, or all assigned ones, from their start."""
        await self._call(self.consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: Partition) -> None:
        """Read of these, or all assigned ones, only what comes from now on."""
        await self._call(self.consumer.seek_to_end, *partitions)

    async def position(self, partition: Partition, *, timeout_ms: int | None = None) -> int:
        """The offset of the record that poll() returns next. KafkaError(7) if it is not known in time."""
        return await self._call(self.consumer.position, partition, timeout_ms=timeout_ms)

    async def beginning_offsets(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each."""
        return await self._call(self.consumer.beginning_offsets, partitions, timeout_ms=timeout_ms)

    async def end_offsets(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each: of the last stable one with read_committed."""
        return await self._call(self.consumer.end_offsets, partitions, timeout_ms=timeout_ms)

    async def offsets_for_times(
        self, times_ms: Mapping[Partition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition that is not older than its time; None where there is none."""
        return await self._call(self.consumer.offsets_for_times, times_ms, timeout_ms=timeout_ms)

    def lag(self) -> dict[TopicPartition, int | None]:
        """How many offsets each assigned partition is ahead of what poll() returned, as its last fetch told."""
        return self.consumer.lag()

    async def partitions_for(self, topic: str, *, timeout_ms: int | None = None) -> list[int]:
        """The partitions of a topic. KafkaError(3) if there is no such topic."""
        return await self._call(self.consumer.partitions_for, topic, timeout_ms=timeout_ms)

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commit these offsets for the group, or what poll() returned. KafkaError as of `Consumer.commit`."""
        await self._call(self.consumer.commit, offsets, timeout_ms=timeout_ms)

    def commit_async(self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None) -> Future[None]:
        """The same without a wait, and without another try. The future, which is one of concurrent.futures, has the
        KafkaError if it failed."""
        return self.consumer.commit_async(offsets)

    async def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group committed for these partitions, None where nothing."""
        return await self._call(self.consumer.committed, partitions, timeout_ms=timeout_ms)

    # -- records -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record]:
        """The next records, up to max_records (max_poll_records); waits for the first of them up to timeout_ms."""
        return await self._poll(timeout_ms, len, partial(self.consumer.poll, 0, max_records))

    async def poll_arrow(
        self,
        timeout_ms: int = 0,
        max_records: int | None = None,
        *,
        columns: Iterable[str] = COLUMNS,
        timestamp_unit: Literal["ms", "us"] = "ms",
    ) -> "pa.RecordBatch":
        """The same as a pyarrow.RecordBatch; see `Consumer.poll_arrow`."""
        look = partial(self.consumer.poll_arrow, 0, max_records, columns=_kept(columns), timestamp_unit=timestamp_unit)
        return await self._poll(timeout_ms, lambda batch: batch.num_rows, look)

    async def poll_numpy(
        self,
        timeout_ms: int = 0,
        max_records: int | None = None,
        *,
        columns: Iterable[str] = COLUMNS,
        timestamp_unit: Literal["ms", "us"] = "ms",
    ) -> "RecordArrays":
        """The same as NumPy arrays; see `Consumer.poll_numpy`."""
        look = partial(self.consumer.poll_numpy, 0, max_records, columns=_kept(columns), timestamp_unit=timestamp_unit)
        return await self._poll(timeout_ms, lambda arrays: arrays.rows, look)

    async def _poll(self, timeout_ms: int, count: Callable[[Result], int], look: "partial[Result]") -> Result:
        """Look until there is something or the time is over, waiting for the consumer's bell in between."""
        self._check_open()
        deadline_s = whole(timeout_ms, "timeout_ms") / 1000 + (loop := asyncio.get_running_loop()).time()
        ring = partial(loop.call_soon_threadsafe, self._rung.set)
        self.consumer.listen(ring)
        try:
            while True:
                self._rung.clear()
                found = await self._look(look)
                left_s = deadline_s - loop.time()
                if count(found) or left_s <= 0:
                    return found
                try:
                    await asyncio.wait_for(self._rung.wait(), min(left_s, _LOOK_S))
                except TimeoutError:
                    continue  # heartbeats go on by themselves, rebalances want to be looked at
        finally:
            self.consumer.listen(None)

    async def _look(self, look: "partial[Result]") -> Result:
        """One call to poll(). If its caller is cancelled meanwhile, the next caller gets what it finds."""
        call: asyncio.Future[Result] | None = self._found.pop(look.func, None)
        if call is None:
            self._check_open()
            call = beside(self._executor, look)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            self._found[look.func] = call
            raise

    def __aiter__(self) -> "AsyncConsumer":
        return self

    async def __anext__(self) -> Record:
        """The next record, however long it takes."""
        while True:
            found = await self.poll(1000, 1)
            if found:
                return found[0]


def _kept(columns: Iterable[str]) -> Iterable[str]:
    """Names that each look of a poll can go through; one name is the consumer's to refuse."""
    return columns if isinstance(columns, str) else tuple(columns)
