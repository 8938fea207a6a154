"""The producer for asyncio, and what the consumer's twin shares with it: the same clients, awaited.

A call that only looks at what is there is made in place; one that may wait for brokers runs on a thread of the client's
own, so that the event loop never stands still.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, Unpack

from pybroker import errors
from pybroker.client.accumulator import EXIT_S
from pybroker.client.network import Network
from pybroker.client.producer import Headers, Producer
from pybroker.client.settings import ProducerSettings
from pybroker.core import Delivery, RecordMetadata
from pybroker.errors import KafkaError

__all__ = ["AsyncProducer"]

Result = TypeVar("Result")


class Twin:
    """A thread for the calls of a client that may wait; one at a time, in their order."""

    def __init__(self, kind: str, network: Network) -> None:
        self._kind = kind
        self._network = network
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"pybroker-async-{kind}")
        self._ended = False

    def _check_open(self) -> None:
        """KafkaError after close(), and in a process that was forked: the thread is the parent's."""
        self._network.check_forked()
        if self._ended:
            raise KafkaError(errors.INVALID_REQUEST, f"the {self._kind} is closed")

    async def _call(self, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *arguments, **named))

    async def _end(self, close: Callable[..., None], timeout: float | None) -> None:
        """Close the client and let the thread end; once, and not for the parent."""
        if self._ended or self._network.was_forked:
            return
        await self._call(close, timeout)
        self._ended = True
        self._executor.shutdown(wait=False)


class AsyncProducer(Twin):
    """`pybroker.Producer` for asyncio; the settings are the same. Use it in an `async with`, or `await close()`."""

    def __init__(self, **settings: Unpack[ProducerSettings]) -> None:
        self.producer = Producer(**settings)
        super().__init__("producer", self.producer._network)

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
        sent = await self._call(
            self.producer.send_columns,
            topic,
            values,
            keys,
            headers=headers,
            partition=partition,
            timestamps_ms=timestamps_ms,
        )
        return list(await asyncio.gather(*map(_awaited, sent)))

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Raises KafkaError as `send` does."""
        return await self._call(self.producer.partitions_for, topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what waits and return once everything sent before has its outcome. TimeoutError if that takes longer."""
        await self._call(self.producer.flush, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, for as long as that may take, and end, as `Producer.close` does."""
        await self._end(self.producer.close, timeout_s)


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
