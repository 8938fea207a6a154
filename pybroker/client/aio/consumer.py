"""The consumer for asyncio: the same client, its waiting done by the event loop.

A `poll` or an iteration that is cancelled loses no record: the next one returns what it had found already. Iteration
takes fetched records on the event loop's own thread while no call runs on the consumer's.
"""

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, cast

from pybroker import errors
from pybroker.client import foreign
from pybroker.client.aio.threads import CountedCalls
from pybroker.client.arguments import whole
from pybroker.client.consuming.base import OffsetAndTimestamp, Partition
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.fetch_collector import FetchCollector, TakenFrom
from pybroker.client.consuming.group import RebalanceListener
from pybroker.client.foreign import OfOtherClients, no_settings_first, renamed
from pybroker.client.net.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from pybroker.client.serialization.fields import Deserializer
from pybroker.client.serialization.variables import Key, Value
from pybroker.client.settings import CONSUMER, ConsumerSettings, signed
from pybroker.core import COLUMNS, Record, RecordSteps
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pybroker.client.columns.arrays import RecordArrays

__all__ = ["AsyncConsumer"]

Given = ParamSpec("Given")
Result = TypeVar("Result")

_LISTENER: Final = "a method of listener=, a RebalanceListener"
_LOOK_S: Final = 0.1
"""Seconds that a poll waits before it looks whether the group has something to do."""

LEASE_S: Final = 0.01
"""Seconds that iteration goes on before other tasks have their turn."""


@signed(CONSUMER, ConsumerSettings)
class AsyncConsumer(OfOtherClients, Generic[Key, Value]):
    """`pybroker.Consumer` for asyncio; the settings are the same. Use it in an `async with`, or `await close()`.

    The methods are the consumer's. Calls that may wait run on one thread, in their order; so do the calls of a
    rebalance listener."""

    _OTHERS = foreign.CONSUMER

    def __init__(
        self,
        *topics: str,
        key_deserializer: Deserializer[Key] | None = None,
        value_deserializer: Deserializer[Value] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        no_settings_first("AsyncConsumer", topics, topics=True)
        self.consumer: Consumer[Key, Value] = Consumer(
            *topics, key_deserializer=key_deserializer, value_deserializer=value_deserializer, **settings
        )
        self._network = self.consumer._network
        self._reader = self.consumer._reader
        self._steps: RecordSteps | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="pybroker-async-consumer")
        self._calls = CountedCalls(self._executor)
        self._ending = self._ended = False
        self._rung = asyncio.Event()
        self._found: dict[object, _Look] = {}
        """Calls whose awaiters were cancelled, by method. The next call of the same method gets their result; any other
        call first puts back what they have found."""
        self._left: deque[Record[Key, Value]] = deque()
        """Records of polls that were cancelled, for iteration."""
        self._left_from: list[TakenFrom] = []
        """Where the poll began that found `_left`."""

    def __repr__(self) -> str:
        return repr(self.consumer).replace("<Consumer", "<AsyncConsumer", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @renamed(timeout="timeout_ms", autocommit="enable_auto_commit, a setting")
    async def close(self, timeout_ms: int | None = None) -> None:
        """Commit if that is automatic, leave the group, and end. Calling it again does nothing.

        Calls that wait for a broker end with KafkaError: the time of this one begins now."""
        if self._ended or self._network.was_forked:
            return
        until_s = None if timeout_ms is None else time.monotonic() + whole(timeout_ms, "timeout_ms") / 1000
        self._ending = True
        self._put_back()
        await self._calls.make(self._close, until_s)
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

    async def _call(self, call: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs) -> Result:
        """Make a call on the thread. It stops waiting for a broker when the caller is cancelled, or the consumer is
        closed, so that the calls behind it can go on."""
        self._check_open()
        self._put_back()
        over = threading.Event()
        try:
            return await self._calls.make(self._made, over, partial(call, *arguments, **named))
        finally:
            over.set()

    def _made(self, over: threading.Event, call: Callable[[], Result]) -> Result:
        """Make a call; for the thread."""
        self._check_open()
        self._network.given_up = lambda: over.is_set() or self._ending
        try:
            return call()
        finally:
            self._network.given_up = lambda: False

    # -- subscriptions and partitions ----------------------------------------------------------------------------------

    @renamed(on_assign=_LISTENER, on_revoke=_LISTENER, on_lost=_LISTENER)
    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or those that a regular expression matches, sharing their partitions with the group."""
        await self._call(self.consumer.subscribe, topics, pattern=pattern, listener=listener)

    async def unsubscribe(self) -> None:
        """Leave the group and read nothing."""
        await self._call(self.consumer.unsubscribe)

    def subscription(self) -> set[str]:
        """The subscribed topics."""
        return self.consumer.subscription()

    async def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions, and no others. IllegalStateError while topics are subscribed."""
        await self._call(self.consumer.assign, partitions)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return self.consumer.assignment()

    async def pause(self, *partitions: Partition) -> None:
        """Return no records of these until `resume`."""
        await self._call(self.consumer.pause, *partitions)

    async def resume(self, *partitions: Partition) -> None:
        """Continue with partitions that were paused."""
        await self._call(self.consumer.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self.consumer.paused()

    # -- positions -----------------------------------------------------------------------------------------------------

    async def seek(self, partition: Partition, offset: int) -> None:
        """Read this partition from an offset on. ValueError if it is not assigned or the offset is negative."""
        await self._call(self.consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: Partition) -> None:
        """Read these, or all assigned ones, from their start."""
        await self._call(self.consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: Partition) -> None:
        """Read these, or all assigned ones, from their end: only records that are appended from now on."""
        await self._call(self.consumer.seek_to_end, *partitions)

    async def position(self, partition: Partition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record to be returned or yielded. KafkaError(REQUEST_TIMED_OUT) if unknown in time."""
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
        """The first record of each partition at or after its time; None without one."""
        return await self._call(self.consumer.offsets_for_times, times_ms, timeout_ms=timeout_ms)

    def lag(self) -> dict[TopicPartition, int | None]:
        """The number of offsets from the position to the end of each assigned partition, as of its last fetch."""
        return self.consumer.lag()

    async def partitions_for(self, topic: str, *, timeout_ms: int | None = None) -> list[int]:
        """The partitions of a topic. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if it does not exist."""
        return await self._call(self.consumer.partitions_for, topic, timeout_ms=timeout_ms)

    # -- commits -------------------------------------------------------------------------------------------------------

    @renamed(asynchronous="commit_async(offsets)", message="commit({(topic, partition): offset + 1})")
    async def commit(
        self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commit these offsets for the group, or the positions. KafkaError as of `Consumer.commit`."""
        await self._call(self.consumer.commit, offsets, timeout_ms=timeout_ms)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group, and this consumer's place in it, as `Consumer.group_metadata`."""
        return self.consumer.group_metadata()

    @renamed(callback="the future's: commit_async(offsets).add_done_callback(call)")
    def commit_async(self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None) -> Future[None]:
        """`commit` without a wait, and without a retry; the future, of concurrent.futures, has the KafkaError if it
        failed."""
        if not self._calls.going_on:
            self._put_back(here=True)
        return self.consumer.commit_async(offsets)

    async def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets of these partitions, None without one."""
        return await self._call(self.consumer.committed, partitions, timeout_ms=timeout_ms)

    # -- records -------------------------------------------------------------------------------------------------------

    @renamed(timeout="timeout_ms", num_messages="max_records", update_offsets="always so")
    async def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record[Key, Value]]:
        """The next records, up to max_records (max_poll_records); waits for the first of them up to timeout_ms."""
        if self._left:
            count = len(self._left) if max_records is None else whole(max_records, "max_records", 1)
            return [self._left.popleft() for _ in range(min(count, len(self._left)))]
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
        """Look until something is found or the time is over, waiting for the consumer's bell in between."""
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
                    continue  # rebalances advance by looks, unlike heartbeats
        finally:
            self.consumer.listen(None)

    async def _look(self, look: "partial[Result]") -> Result:
        """Make one call. If its awaiter is cancelled meanwhile, the next caller gets the result."""
        found: Result = (await self._looked(look))[0]
        return found

    async def _looked(self, look: "partial[Any]") -> "tuple[Any, list[TakenFrom]]":
        """Make one call; its result, and where its records began."""
        if self._left or self._found.keys() - {look.func}:
            self._put_back()
        made = self._found.pop(look.func, None)
        if made is None:
            self._check_open()
            made = _Look(self._reader, look)
            made.call = self._calls.make(made.make)
        try:
            return await asyncio.shield(made.call), made.taken_from
        except asyncio.CancelledError:
            self._found[look.func] = made
            raise

    def _put_back(self, *, here: bool = False) -> None:
        """Have the thread go back to before the records that cancelled calls have found and no caller has got; `here`
        while the thread does nothing. Otherwise a commit would count them, and they would come after a seek."""
        if not self._found and not self._left:
            return
        looks = [*self._found.values()]
        firsts = {TopicPartition(each.topic, each.partition): each.offset for each in reversed(self._left)}
        left_from = [
            each._replace(position=firsts[each.place.tp], epoch=-1)
            for each in self._left_from
            if each.place.tp in firsts
        ]
        self._found.clear()
        self._left.clear()
        self._steps = None
        if here:
            self._put_back_now(looks, left_from)
        else:
            self._calls.make(self._put_back_now, looks, left_from)

    def _put_back_now(self, looks: "list[_Look]", left_from: list[TakenFrom]) -> None:
        for look in reversed(looks):
            if isinstance(look.found, Record):
                self._reader.refuse(look.found)
            else:
                self._reader.put_back(look.taken_from)
        self._reader.put_back(left_from)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[Key, Value]:
        """The next record, however long it takes; consumed once it is yielded, as by the consumer's own iteration."""
        if self._steps is not None and not self._calls.going_on and not self._found and not self._left:
            record = self._steps.take()
            if record is not None:
                if self._reader.decoder is None:
                    return cast("Record[Key, Value]", record)
                return await self._decoded(record)
        return await self._next()

    async def _next(self) -> Record[Key, Value]:
        """The next record after a call on the thread, which opens what was fetched and takes nothing of it: a caller
        that is cancelled meanwhile loses no record. First come records of callers that were cancelled."""
        self._steps = None
        decode: Callable[..., Record[Key, Value]] = self.consumer._decode
        if decode in self._found:
            return await self._look(partial(decode))
        if self.consumer.poll in self._found:
            polled, self._left_from = await self._looked(partial(self.consumer.poll))
            self._left.extend(polled)
        while not self._left:
            if not await self._poll(1000, int, partial(self.consumer._ready)):
                continue
            if not self._calls.going_on:
                self._steps = self._reader.at_hand(LEASE_S)
                record = None if self._steps is None else self._steps.take()
                if record is not None:
                    return await self._decoded(record)
            self._left.extend(await self.poll(0, 1))  # raises errors, and skips batches without records
        return self._left.popleft()

    async def _decoded(self, record: Record) -> Record[Key, Value]:
        """Deserialize a record that was at hand, on the thread if that asks a registry."""
        decoder = self._reader.decoder
        if decoder is None:
            return cast("Record[Key, Value]", record)
        if decoder.blocks(record):
            return await self._look(partial(self.consumer._decode, decoder, record))
        return self.consumer._decode(decoder, record)


class _Look:
    """A call that reads, and what it found."""

    call: "asyncio.Future[Any]"

    def __init__(self, reader: FetchCollector, look: "partial[Any]") -> None:
        self._reader, self._look = reader, look
        self.found: object = None
        self.taken_from: list[TakenFrom] = []

    def make(self) -> object:
        """Make the call, on the thread. What it found is kept here too: the future has it only later."""
        self._reader.taken_from = []
        self.found = self._look()
        self.taken_from = self._reader.taken_from
        return self.found


def _kept(columns: Iterable[str]) -> Iterable[str]:
    """Names that each look of a poll can go through; one name is the consumer's to refuse."""
    return columns if isinstance(columns, str) else tuple(columns)
