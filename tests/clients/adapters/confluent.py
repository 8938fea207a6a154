"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from tests.clients.adapters.neutral import CALL_S_MAX, Acks, Client, Consumer, Producer, Record, Refused

T = TypeVar("T")
LIMIT = 16 << 20
QUIET = {"log_level": 2, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


def refusal(error: ck.KafkaError) -> Refused:
    return Refused(error.code(), error.str())


def translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except ck.KafkaException as e:
        raise refusal(e.args[0]) from e


class ConfluentProducer(Producer):
    """A producer whose thread calls poll() for delivery reports, as applications do."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._producer = ck.Producer(dict(conf))
        self._left = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="librdkafka poll", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        while not self._left.is_set():
            self._producer.poll(0.02)

    def leave(self) -> None:
        self._left.set()
        self._poller.join()

    def send(self, topic: str, record: Record) -> Future[int]:
        future: Future[int] = Future()

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is None:
                offset = message.offset()
                future.set_result(offset if offset is not None and offset >= 0 else -1)
            else:
                future.set_exception(refusal(error))

        when = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
        self._producer.produce(
            topic,
            record.value,
            record.key,
            partition=record.partition,
            headers=list(record.headers),
            on_delivery=delivered,
            **when,
        )
        return future

    def flush(self, timeout_s: float = CALL_S_MAX) -> None:
        left = self._producer.flush(timeout_s)
        assert left == 0, f"{left} records were not acknowledged within {timeout_s} s"


class ConfluentConsumer(Consumer):
    def __init__(self, consumer: ck.Consumer) -> None:
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Record]:
        first = self._consumer.poll(timeout_s)
        return [] if first is None else [_record(m) for m in [first, *self._consumer.consume(10_000, 0)]]


def _record(message: ck.Message) -> Record:
    if (error := message.error()) is not None:
        raise refusal(error)
    headers = tuple(message.headers() or ())
    return Record(
        message.value(), message.key(), headers, message.timestamp()[1], message.partition(), message.offset()
    )


class Confluent(Client):
    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._conf = {"bootstrap.servers": bootstrap, **QUIET}
        self._admin = AdminClient(dict(self._conf))

    def close(self) -> None:
        """Do nothing: librdkafka's admin client ends with its last reference."""

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
        conf = {
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": idempotent,
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "message.max.bytes": LIMIT,
        }
        if (timeout_ms := self.request_timeout_ms) is not None:
            conf |= {"request.timeout.ms": timeout_ms, "socket.timeout.ms": timeout_ms + 500}
        producer = ConfluentProducer({**self._conf, **conf})
        try:
            yield producer
        finally:
            producer.leave()

    @contextmanager
    def consumer(
        self, topic: str, positions: Mapping[int, int], *, out_of_range: str = "refuse", max_wait_ms: int = 500
    ) -> Iterator[Consumer]:
        conf = {
            "group.id": "unused",  # librdkafka requires one; assign() without commits never contacts its coordinator
            "enable.auto.commit": False,
            "auto.offset.reset": {"refuse": "error", "earliest": "earliest"}[out_of_range],
            "fetch.wait.max.ms": max_wait_ms,
            "receive.message.max.bytes": 100 << 20,
        }
        consumer = ck.Consumer({**self._conf, **conf})
        try:
            consumer.assign([ck.TopicPartition(topic, p, offset) for p, offset in positions.items()])
            yield ConfluentConsumer(consumer)
        finally:
            consumer.close()

    def _ask(self, futures: Mapping[Any, Future[Any]]) -> Any:
        (future,) = futures.values()
        return translated(lambda: future.result(CALL_S_MAX))

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
        self._ask(self._admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        self._ask(self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        self._ask(self._admin.create_partitions([NewPartitions(topic, total)]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        deleted = self._ask(self._admin.delete_records([ck.TopicPartition(topic, partition, before)]))
        return int(deleted.low_watermark)

    def topics(self) -> dict[str, list[int]]:
        metadata = translated(lambda: self._admin.list_topics(timeout=CALL_S_MAX))
        return {name: sorted(topic.partitions) for name, topic in metadata.topics.items()}

    def _list_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        return int(self._ask(self._admin.list_offsets({ck.TopicPartition(topic, partition): spec})).offset)

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        start, end = (self._list_offset(topic, partition, s) for s in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return start, end

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = self._list_offset(topic, partition, OffsetSpec.for_timestamp(timestamp_ms))
        return None if offset < 0 else offset

    def _config(self, kind: ConfigResource.Type, name: str) -> dict[str, str | None]:
        entries = self._ask(self._admin.describe_configs([ConfigResource(kind, name)]))
        return {entry.name: entry.value for entry in entries.values()}

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResource.Type.TOPIC, topic)

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._config(ConfigResource.Type.BROKER, str(broker_id))

    def cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        told = translated(lambda: self._admin.describe_cluster().result(CALL_S_MAX))
        nodes = {node.id: (node.host, node.port) for node in told.nodes}
        return told.cluster_id, told.controller.id, nodes
