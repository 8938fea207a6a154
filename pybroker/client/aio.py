"""The producer and the consumer for asyncio: the same clients, their waiting done by the event loop.

A call that only looks at what is there is made in place; one that may wait for brokers runs on a thread of the client's
own, so that the event loop never stands still. A `poll` that is cancelled loses no record: what it had found already,
the next one returns.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pybroker.client.committed import OffsetAndMetadata
from pybroker.client.consumer import Consumer, OffsetAndTimestamp, Partition
from pybroker.client.producer import Headers, Producer
from pybroker.core import COLUMNS, Delivery, Record, RecordMetadata
from pybroker.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pybroker.client.arrays import RecordArrays

__all__ = ["AsyncConsumer", "AsyncProducer"]

Result = TypeVar("Result")

_LOOK_S: Final = 0.1  # how long a poll waits before it looks whether there is something to do for the group


class _Twin:
    """A thread for calls that may wait; one at a time, in their order."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def _call(self, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *arguments, **named))


class AsyncProducer(_Twin):
    """`pybroker.Producer` for asyncio; the settings are the same. `async with` it, or `await close()`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("pybroker-async-producer")
        self.producer = Producer(**settings)

    async def __aenter__(self) -> "AsyncProducer":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(None if kind is None else 0)

    async def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Add a record, waiting for metadata and memory; the future that is returned has its outcome.

        `await (await producer.send(...))` waits for the acknowledgement of one, `flush` for that of all."""
        made = self.producer.try_send(topic, value, key, headers, partition, timestamp_ms)
        if made is None:
            made = await self._call(
                self.producer.send,
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        return _awaited(made)

    async def send_columns(self, topic: str, values: Any, keys: Any = None, **how: Any) -> list[RecordMetadata]:
        """`Producer.send_columns`, and the acknowledgement of each of its batches."""
        sent = await self._call(self.producer.send_columns, topic, values, keys, **how)
        return list(await asyncio.gather(*map(_awaited, sent)))

    async def partitions_for(self, topic: str) -> list[int]:
        return await self._call(self.producer.partitions_for, topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        await self._call(self.producer.flush, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        await self._call(self.producer.close, timeout_s)
        self._executor.shutdown(wait=False)


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


def _kept(columns: Iterable[str]) -> Iterable[str]:
    """Names that each look of a poll can go through; one name is the consumer's to refuse."""
    return columns if isinstance(columns, str) else tuple(columns)


class AsyncConsumer(_Twin):
    """`pybroker.Consumer` for asyncio; the settings are the same. `async with` it, or `await close()`.

    A rebalance listener is called on the client's own thread. What does not wait is asked of `consumer` itself:
    assignment(), pause(), resume(), lag()."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("pybroker-async-consumer")
        self.consumer = Consumer(**settings)
        self._rung = asyncio.Event()
        self._found: dict[Callable[..., Any], asyncio.Future[Any]] = {}
        """Calls whose callers were cancelled, by what was called."""

    async def __aenter__(self) -> "AsyncConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, timeout_ms: int | None = None) -> None:
        await self._call(self.consumer.close, timeout_ms)
        self._executor.shutdown(wait=False)

    async def subscribe(self, topics: Iterable[str] = (), **how: Any) -> None:
        await self._call(self.consumer.subscribe, topics, **how)

    async def unsubscribe(self) -> None:
        await self._call(self.consumer.unsubscribe)

    async def assign(self, partitions: Iterable[Partition]) -> None:
        await self._call(self.consumer.assign, partitions)

    async def seek(self, partition: Partition, offset: int) -> None:
        await self._call(self.consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: Partition) -> None:
        await self._call(self.consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: Partition) -> None:
        await self._call(self.consumer.seek_to_end, *partitions)

    async def position(self, partition: Partition) -> int:
        return await self._call(self.consumer.position, partition)

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        return await self._call(self.consumer.beginning_offsets, partitions)

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        return await self._call(self.consumer.end_offsets, partitions)

    async def offsets_for_times(
        self, times_ms: Mapping[Partition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return await self._call(self.consumer.offsets_for_times, times_ms)

    async def partitions_for(self, topic: str) -> list[int]:
        return await self._call(self.consumer.partitions_for, topic)

    async def commit(self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None) -> None:
        await self._call(self.consumer.commit, offsets)

    async def committed(self, partitions: Iterable[Partition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._call(self.consumer.committed, partitions)

    # -- records -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record]:
        """As `Consumer.poll`."""
        return await self._poll(timeout_ms, len, partial(self.consumer.poll, 0, max_records))

    async def poll_arrow(
        self, timeout_ms: int = 0, max_records: int | None = None, *, columns: Iterable[str] = COLUMNS, **how: Any
    ) -> "pa.RecordBatch":
        """As `Consumer.poll_arrow`."""
        look = partial(self.consumer.poll_arrow, 0, max_records, columns=_kept(columns), **how)
        return await self._poll(timeout_ms, lambda batch: batch.num_rows, look)

    async def poll_numpy(
        self, timeout_ms: int = 0, max_records: int | None = None, *, columns: Iterable[str] = COLUMNS, **how: Any
    ) -> "RecordArrays":
        """As `Consumer.poll_numpy`."""
        look = partial(self.consumer.poll_numpy, 0, max_records, columns=_kept(columns), **how)
        return await self._poll(timeout_ms, lambda arrays: arrays.rows, look)

    async def _poll(self, timeout_ms: int, count: Callable[[Result], int], look: "partial[Result]") -> Result:
        """Look until there is something or the time is over, waiting for the consumer's bell in between."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
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
            call = asyncio.get_running_loop().run_in_executor(self._executor, look)
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
