"""aiokafka, with its event loop on a thread, so that its background tasks run as they do in an application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from tests.clients.adapters.neutral import CALL_S_MAX, Acks, Client, Consumer, Producer, Record, Refused

T = TypeVar("T")
LIMIT = 16 << 20
CANCEL_S_MAX = 10.0


def refusal(error: BaseException) -> Refused:
    return Refused(getattr(error, "errno", None) or -1000, f"{type(error).__name__}: {error}")


def raise_for(code: int, message: object = "") -> None:
    """Raise the error in a response of aiokafka's admin client."""
    if code:
        raise refusal(for_code(code)(message))


class LoopThread:
    """An event loop that runs until close(); `run` waits for a coroutine on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="aiokafka loop", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self.start(coroutine).result(CALL_S_MAX + 10)
        except KafkaError as e:
            raise refusal(e) from e

    def close(self) -> None:
        """Cancel what still runs, also a client that timed out in stop()."""
        self.start(_cancel_others()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_S_MAX)


async def stopped(client: Any) -> None:
    """Stop it, and close connections that aiokafka leaves open if the coordinator does not answer."""
    try:
        await (client.stop() if hasattr(client, "stop") else client.close())
    finally:
        await (client.client if isinstance(client, AIOKafkaProducer) else client._client).close()


class AioProducer(Producer):
    def __init__(self, loop: LoopThread, producer: AIOKafkaProducer) -> None:
        self._loop = loop
        self._producer = producer

    def send(self, topic: str, record: Record) -> Future[int]:
        future: Future[int] = Future()

        def done(sent: asyncio.Future[Any]) -> None:
            if (error := sent.exception()) is not None:
                future.set_exception(refusal(error))
            else:
                metadata = sent.result()
                future.set_result(-1 if metadata is None else metadata.offset)

        async def hand_over() -> None:
            sent = await self._producer.send(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            sent.add_done_callback(done)

        self._loop.run(hand_over())
        return future

    def flush(self, timeout_s: float = CALL_S_MAX) -> None:
        self._loop.run(asyncio.wait_for(self._producer.flush(), timeout_s))


class AioConsumer(Consumer):
    def __init__(self, loop: LoopThread, consumer: AIOKafkaConsumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Record]:
        polled = self._loop.run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [_record(r) for records in polled.values() for r in records]


def _record(r: Any) -> Record:
    return Record(r.value, r.key, tuple(r.headers), r.timestamp, r.partition, r.offset)


class Aiokafka(Client):
    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._loop = LoopThread()
        self._admin_client: AIOKafkaAdminClient | None = None
        self._lookup_consumer: AIOKafkaConsumer | None = None

    def close(self) -> None:
        if self._admin_client is not None:
            self._loop.run(stopped(self._admin_client))
        if self._lookup_consumer is not None:
            self._loop.run(stopped(self._lookup_consumer))
        self._loop.close()

    def _open(self, make: Callable[[], T]) -> T:
        """Create and start a client on the event loop, as aiokafka requires."""

        async def opened() -> Any:
            client: Any = make()
            try:
                await client.start()
            except BaseException:
                await stopped(client)
                raise
            return client

        return self._loop.run(opened())

    def _admin(self, call: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Any]]) -> Any:
        if self._admin_client is None:
            self._admin_client = self._open(lambda: AIOKafkaAdminClient(bootstrap_servers=self.bootstrap))
        return self._loop.run(call(self._admin_client))

    def _lookup(self, call: Callable[[AIOKafkaConsumer], Coroutine[Any, Any, Any]]) -> Any:
        if self._lookup_consumer is None:
            self._lookup_consumer = self._open(lambda: AIOKafkaConsumer(bootstrap_servers=self.bootstrap))
        return self._loop.run(call(self._lookup_consumer))

    @contextmanager
    def producer(
        self,
        *,
        codec: str = "none",
        acks: Acks = "all",
        idempotent: bool = False,
        linger_ms: int = 5,
        batch_bytes: int = 16384,
    ) -> Iterator[Producer]:
        wait = {} if self.request_timeout_ms is None else {"request_timeout_ms": self.request_timeout_ms}
        producer = self._open(
            lambda: AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                **wait,
                compression_type=None if codec == "none" else codec,
                acks=acks,
                enable_idempotence=idempotent,
                linger_ms=linger_ms,
                max_batch_size=batch_bytes,
                max_request_size=LIMIT,
            )
        )
        try:
            yield AioProducer(self._loop, producer)
        finally:
            self._loop.run(stopped(producer))

    @contextmanager
    def consumer(
        self, topic: str, positions: Mapping[int, int], *, out_of_range: str = "refuse", max_wait_ms: int = 500
    ) -> Iterator[Consumer]:
        consumer = self._open(
            lambda: AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                enable_auto_commit=False,
                auto_offset_reset={"refuse": "none", "earliest": "earliest"}[out_of_range],
                fetch_max_wait_ms=max_wait_ms,
            )
        )

        async def assign() -> None:
            consumer.assign([TopicPartition(topic, p) for p in positions])
            for partition, offset in positions.items():
                consumer.seek(TopicPartition(topic, partition), offset)

        try:
            self._loop.run(assign())
            yield AioConsumer(self._loop, consumer)
        finally:
            self._loop.run(stopped(consumer))

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))
        new.replication_factor = replication_factor  # afterwards: it refuses -1, which Kafka accepts since 2.4
        for _, code, message in self._admin(lambda a: a.create_topics([new])).topic_errors:
            raise_for(code, message)

    def delete_topic(self, topic: str) -> None:
        for _, code in self._admin(lambda a: a.delete_topics([topic])).topic_error_codes:
            raise_for(code, topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self._admin(lambda a: a.create_partitions({topic: NewPartitions(total)}))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        tp = TopicPartition(topic, partition)
        return int(self._admin(lambda a: a.delete_records({tp: RecordsToDelete(before)}))[tp])

    def topics(self) -> dict[str, list[int]]:
        told = self._admin(lambda a: a.describe_topics())
        return {t["topic"]: sorted(p["partition"] for p in t["partitions"]) for t in told}

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        tp = TopicPartition(topic, partition)
        start = self._lookup(lambda c: c.beginning_offsets([tp]))[tp]
        return start, self._lookup(lambda c: c.end_offsets([tp]))[tp]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        tp = TopicPartition(topic, partition)
        found = self._lookup(lambda c: c.offsets_for_times({tp: timestamp_ms}))[tp]
        return None if found is None else int(found.offset)

    def _config(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        (response,) = self._admin(lambda a: a.describe_configs([ConfigResource(kind, name)]))
        ((code, message, _, _, entries),) = response.resources
        raise_for(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResourceType.TOPIC, topic)

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._config(ConfigResourceType.BROKER, str(broker_id))

    def cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        told = self._admin(lambda a: a.describe_cluster())
        nodes = {b["node_id"]: (b["host"], b["port"]) for b in told["brokers"]}
        return told["cluster_id"], told["controller_id"], nodes
