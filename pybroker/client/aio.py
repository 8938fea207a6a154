"""The producer for asyncio: the same client, its waits awaited.

Each task awaits by itself what its call waits for (metadata, memory, outcomes), so tasks do not wait for each other.
Threads only encode columns, and wait for the end of the producer's own thread.
"""

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Unpack

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.accumulator import EXIT_S
from pybroker.client.beside import beside
from pybroker.client.producer import POLL_S, Headers, Producer, Result, Steps, late
from pybroker.client.settings import ProducerSettings
from pybroker.core import Delivery, RecordMetadata
from pybroker.errors import KafkaError

__all__ = ["AsyncProducer"]

_THREADS: Final = 4
"""Calls of send_columns that encode at the same time."""


class AsyncProducer:
    """`pybroker.Producer` for asyncio; the settings are the same. Use it in an `async with`, or `await close()`.

    Calls of different tasks do not wait for each other, and a call that is cancelled ends at once."""

    def __init__(self, **settings: Unpack[ProducerSettings]) -> None:
        self.producer = Producer(**settings)
        self._network = self.producer._network
        self._accumulator = self.producer._accumulator
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pybroker-async-producer")
        self._waiting: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        """By topic, the lock that keeps waiting sends in order, and an entry for each of these sends."""

    async def __aenter__(self) -> "AsyncProducer":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(None if kind is None else EXIT_S)

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
        """Add a record as `Producer.send` does, waiting for metadata and memory; return a future of its outcome.

        `await (await producer.send(...))` waits for the acknowledgement of one record, `flush` for those of all."""
        deadline_s = time.monotonic() + self.producer._block_s
        record = (value, key, headers, partition, timestamp_ms)
        made = None if topic in self._waiting else self.producer.try_send(topic, *record)
        return _awaited(await self._in_order(deadline_s, topic, *record) if made is None else made)

    async def _in_order(self, deadline_s: float, topic: str, *record: Any) -> Delivery:
        """Send after the sends of this topic that wait already, which may take all of its time."""
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
                return await self._through(self.producer._see_to(deadline_s, topic, *record))
            finally:
                lock.release()
        finally:
            waiting.pop()
            if not waiting:
                self._waiting.pop(topic, None)

    async def _through(self, steps: Steps[Result], *, aside: bool = False) -> Result:
        """Await each wait of `steps`, and return their result; what they do in between is done on a thread if it
        takes a while (`aside`). No thread waits."""
        while True:
            if aside:
                self._check_open()
            ended, found = await beside(self._threads, _next, steps) if aside else _next(steps)
            if ended:
                result: Result = found
                return result
            with contextlib.nullcontext() if found is None else self._accumulator.hurry():
                await asyncio.sleep(POLL_S if found is None else min(found, POLL_S))

    async def send_columns(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        headers: Any = None,
        partition: Any = None,
        timestamps_ms: Any = None,
    ) -> list[RecordMetadata]:
        """Add many records as `Producer.send_columns` does; wait until each batch is acknowledged, and return where
        the first record of each lies."""
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

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what waits and return once everything sent before has its outcome. TimeoutError if that takes longer."""
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
                        with contextlib.suppress(KafkaError):  # of which the future of the record says
                            await _awaited(batch.delivery())
                return True
        return False

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, for as long as that may take, and end, as `Producer.close` does."""
        if not self.producer._begin_close(timeout_s):
            return
        try:
            if timeout_s != 0:
                await self._flush(timeout_s)
        finally:
            self._threads.shutdown(wait=False)
            thread = ThreadPoolExecutor(1, thread_name_prefix="pybroker-async-producer-close")
            ended = beside(thread, self.producer._end_close)
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
