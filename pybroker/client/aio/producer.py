"""The producer for asyncio: the same client, its waits awaited.

Each task awaits by itself what its call waits for (metadata, memory, outcomes), so tasks do not wait for each other.
Threads only encode columns, and wait for the end of the producer's own thread.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, Never, Self, Unpack, cast

from pybroker import errors
from pybroker.client import arguments, foreign
from pybroker.client.aio.threads import on_thread
from pybroker.client.foreign import OfOtherClients, no_settings_first, renamed
from pybroker.client.net.group_offsets import ConsumerGroupMetadata
from pybroker.client.producing.accumulator import EXIT_S
from pybroker.client.producing.partitioners import Partitioner, PartitionerName
from pybroker.client.producing.producer import POLL_S, Headers, Producer, Result, Steps, late
from pybroker.client.producing.transactional_calls import GroupOffsets, abort_after_failure
from pybroker.client.serialization.fields import Plain, Serializer
from pybroker.client.serialization.variables import GivenKey, GivenValue
from pybroker.client.settings import PRODUCER, ProducerSettings, signed
from pybroker.core import Delivery, RecordMetadata
from pybroker.errors import KafkaError

__all__ = ["AsyncProducer"]

_SECONDS: Final = "timeout_s, in seconds"
_THREADS: Final = 4
"""Calls of send_columns that encode at the same time."""


@signed(PRODUCER, ProducerSettings)
class AsyncProducer(OfOtherClients, Generic[GivenKey, GivenValue]):
    """`pybroker.Producer` for asyncio; the settings are the same. Use it in an `async with`, or `await close()`.

    Calls of different tasks do not wait for each other, and a call that is cancelled ends at once."""

    _OTHERS = foreign.PRODUCER

    def __init__(
        self,
        *misplaced: Never,
        key_serializer: Serializer[GivenKey] | None = None,
        value_serializer: Serializer[GivenValue] | None = None,
        partitioner: PartitionerName | Partitioner | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        no_settings_first("AsyncProducer", misplaced)
        self.producer: Producer[GivenKey, GivenValue] = Producer(
            key_serializer=key_serializer, value_serializer=value_serializer, partitioner=partitioner, **settings
        )
        self._network = self.producer._network
        self._accumulator = self.producer._accumulator
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pybroker-async-producer")
        self._waiting: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        """By topic, the lock that keeps waiting sends in order, and an entry for each of them."""

    def __repr__(self) -> str:
        return repr(self.producer).replace("<Producer", "<AsyncProducer", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(None if kind is None else EXIT_S)

    async def send(
        self,
        topic: str,
        value: GivenValue | None = None,
        *,
        key: GivenKey | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Add a record as `Producer.send` does, waiting for metadata and memory; return a future of its outcome.

        `send_and_wait` waits for the acknowledgement of one record too, `flush` for those of all."""
        return _awaited(await self._sent(topic, value, key, headers, partition, timestamp_ms))

    async def send_and_wait(
        self,
        topic: str,
        value: GivenValue | None = None,
        *,
        key: GivenKey | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """`send`, without lingering, and wait for the acknowledgement: where the record lies, or its KafkaError."""
        with self._accumulator.hurry():
            return await _awaited(await self._sent(topic, value, key, headers, partition, timestamp_ms))

    async def _sent(
        self, topic: str, value: object, key: object, headers: Headers, partition: int | None, timestamp_ms: int | None
    ) -> Delivery:
        deadline_s = time.monotonic() + self.producer._block_s
        encoder = self.producer.encoder
        if encoder is not None and encoder.blocks(topic, key, value):
            key, value = await on_thread(self._threads, encoder.encoded, topic, key, value)
        elif encoder is not None:
            key, value = encoder.encoded(topic, key, value)
        data = cast("tuple[Plain, Plain]", (value, key))
        record = (*data, headers, partition, timestamp_ms)
        made = None if topic in self._waiting else self.producer.try_send(topic, *record)
        return await self._in_order(deadline_s, topic, record) if made is None else made

    async def _in_order(
        self, deadline_s: float, topic: str, record: tuple[Plain, Plain, Headers, int | None, int | None]
    ) -> Delivery:
        """Send after the waiting sends of this topic, which may take all of the time."""
        self._check_open()
        lock, waiting = self._waiting.setdefault(topic, (asyncio.Lock(), []))
        waiting.append(None)
        try:
            try:
                async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                    await lock.acquire()
            except TimeoutError:
                raise self.producer._overdue(topic) from None
            try:
                return await self._through(self.producer._placed(deadline_s, topic, *record))
            finally:
                lock.release()
        finally:
            waiting.pop()
            if not waiting:
                self._waiting.pop(topic, None)

    async def _through(self, steps: Steps[Result], *, aside: bool = False) -> Result:
        """Await each wait of `steps`, and return their result. `aside`: work between the waits takes long, and is done
        on a thread. No thread waits."""
        while True:
            if aside:
                self._check_open()
            ended, found = await on_thread(self._threads, _next, steps) if aside else _next(steps)
            if ended:
                result: Result = found
                return result
            with contextlib.nullcontext() if found is None else self._accumulator.hurry():
                await asyncio.sleep(POLL_S if found is None else min(found, POLL_S))

    async def send_columns(
        self,
        topic: str,
        values: object,
        keys: object = None,
        *,
        headers: object = None,
        partition: object = None,
        timestamps_ms: object = None,
    ) -> list[RecordMetadata]:
        """Add many records as `Producer.send_columns` does, and wait until all batches are acknowledged; return the
        metadata of the first record of each."""
        self._check_open()
        deadline_s = time.monotonic() + self.producer._block_s
        await self._through(self.producer._find(topic, deadline_s))
        steps = self.producer._add_columns(deadline_s, topic, values, keys, headers, partition, timestamps_ms)
        sent = await self._through(steps, aside=True)
        return list(await asyncio.gather(*map(_awaited, sent)))

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Raises KafkaError as `send` does."""
        self._check_open()
        info = await self._through(self.producer._find(topic, time.monotonic() + self.producer._block_s))
        return [p.partition for p in info.partitions]

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        """`Producer.init_transactions`."""
        await on_thread(self._threads, self.producer.init_transactions, timeout_s)

    async def begin_transaction(self) -> None:
        """`Producer.begin_transaction`."""
        await on_thread(self._threads, self.producer.begin_transaction)

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        """`Producer.commit_transaction`."""
        await on_thread(self._threads, self.producer.commit_transaction, timeout_s)

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        """`Producer.abort_transaction`."""
        await on_thread(self._threads, self.producer.abort_transaction, timeout_s)

    async def send_offsets_to_transaction(
        self, offsets: GroupOffsets, group: ConsumerGroupMetadata | str, timeout_s: float | None = None
    ) -> None:
        """`Producer.send_offsets_to_transaction`."""
        await on_thread(self._threads, self.producer.send_offsets_to_transaction, offsets, group, timeout_s)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`Producer.transaction`, for an `async with`."""
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            await asyncio.shield(on_thread(self._threads, abort_after_failure, self.producer))
            raise

    @renamed(timeout=_SECONDS)
    async def flush(self, timeout_s: float | None = None) -> None:
        """Send all waiting records, and wait until each has its outcome. TimeoutError if that takes longer."""
        self._check_open()
        if not await self._flush(arguments.seconds(timeout_s)):
            raise late(timeout_s)

    async def _flush(self, timeout_s: float | None) -> bool:
        left = self._accumulator.pending()
        with self._accumulator.hurry(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while left:
                    batch = left.popleft()
                    if not batch.ended:
                        with contextlib.suppress(KafkaError):  # the future of the record has it
                            await _awaited(batch.delivery())
                return True
        return False

    @renamed(timeout=_SECONDS)
    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, for `timeout_s` at most, and end, as `Producer.close` does."""
        if not self.producer._begin_close(timeout_s):
            return
        try:
            if self.producer._transactions is not None:
                await on_thread(self._threads, abort_after_failure, self.producer, timeout_s)
            if timeout_s != 0:
                await self._flush(timeout_s)
        finally:
            self._threads.shutdown(wait=False)
            thread = ThreadPoolExecutor(1, thread_name_prefix="pybroker-async-producer-close")
            ended: asyncio.Future[object] = on_thread(thread, self.producer._end_close)
            thread.shutdown(wait=False)
            await ended

    def _check_open(self) -> None:
        self._network.check_usable()
        if self.producer._closed:
            raise KafkaError(errors.INVALID_REQUEST, "the producer is closed")


def _next(steps: Steps[Any]) -> tuple[bool, Any]:
    """(False, the next wait of `steps`), or (True, their result): an asyncio.Future takes no StopIteration."""
    try:
        return False, next(steps)
    except StopIteration as done:
        return True, done.value


def _awaited(delivery: Delivery) -> "asyncio.Future[RecordMetadata]":
    """A future of the running loop with the outcome of a record."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[RecordMetadata] = loop.create_future()

    def tell(done: Delivery) -> None:
        if future.cancelled():
            return
        error = done.exception(0)
        if error is None:
            future.set_result(done.result(0))
        else:
            future.set_exception(error)

    def hear(done: Delivery) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, done)

    if delivery.done():
        tell(delivery)
    else:
        delivery.add_done_callback(hear)
    return future
