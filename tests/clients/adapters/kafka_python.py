"""kafka-python 3."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

with warnings.catch_warnings():
    # It reads its schemas with a deprecated call.
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    import kafka
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, KafkaAdminClient
    from kafka.errors import KafkaError
    from kafka.net.inet import KafkaNetSocket

from tests.clients.adapters.neutral import CALL_S_MAX, Acks, Client, Consumer, Producer, Record, Refused

T = TypeVar("T")
LIMIT = 16 << 20
RECONNECT = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200}


class ClosedAtLast(socket.socket):
    """A connection whose socket is closed when it is refused; kafka-python only drops it, with a ResourceWarning."""

    def __del__(self) -> None:
        self.close()


KafkaNetSocket.socket = lambda self, family, kind, proto: ClosedAtLast(family, kind, proto)


def refusal(error: BaseException) -> Refused:
    return Refused(getattr(error, "errno", None) or -1000, f"{type(error).__name__}: {error}")


def translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except KafkaError as e:
        raise refusal(e) from e


class KafkaPythonProducer(Producer):
    def __init__(self, producer: kafka.KafkaProducer, acks: Acks) -> None:
        self._producer = producer
        self._offset_told = acks != 0  # with acks=0 the library makes an offset up

    def send(self, topic: str, record: Record) -> Future[int]:
        future: Future[int] = Future()
        sent = translated(
            lambda: self._producer.send(
                topic, record.value, record.key, list(record.headers), record.partition, record.timestamp_ms
            )
        )
        sent.add_callback(lambda metadata: future.set_result(metadata.offset if self._offset_told else -1))
        sent.add_errback(lambda e: future.set_exception(refusal(e)))
        return future

    def flush(self, timeout_s: float = CALL_S_MAX) -> None:
        translated(lambda: self._producer.flush(timeout_s))


class KafkaPythonConsumer(Consumer):
    def __init__(self, consumer: kafka.KafkaConsumer) -> None:
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Record]:
        polled = translated(lambda: self._consumer.poll(int(timeout_s * 1000), max_records=10_000))
        return [_record(r) for records in polled.values() for r in records]


def _record(r: Any) -> Record:
    return Record(r.value, r.key, tuple(r.headers), r.timestamp, r.partition, r.offset)


class KafkaPython(Client):
    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._at = {"bootstrap_servers": bootstrap, **RECONNECT}
        self._opened: list[Any] = []

    @property
    def _admin(self) -> KafkaAdminClient:
        for opened in self._opened:
            if isinstance(opened, KafkaAdminClient):
                return opened
        self._opened.append(KafkaAdminClient(**self._at))
        return self._opened[-1]

    @property
    def _lookup(self) -> kafka.KafkaConsumer:
        for opened in self._opened:
            if isinstance(opened, kafka.KafkaConsumer):
                return opened
        self._opened.append(kafka.KafkaConsumer(**self._at, enable_auto_commit=False))
        return self._opened[-1]

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        self._opened.clear()

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
        how = {
            **self._at,
            **wait,
            "compression_type": None if codec == "none" else codec,
            "acks": acks,
            "enable_idempotence": idempotent,
            "linger_ms": linger_ms,
            "batch_size": batch_bytes,
            "max_request_size": LIMIT,
        }
        producer = translated(lambda: kafka.KafkaProducer(**how))
        try:
            yield KafkaPythonProducer(producer, acks)
        except BaseException:
            with suppress(KafkaError):  # records that it can no longer send are another error's subject
                producer.close(timeout=1)
            raise
        producer.close(timeout=CALL_S_MAX)

    @contextmanager
    def consumer(
        self, topic: str, positions: Mapping[int, int], *, out_of_range: str = "refuse", max_wait_ms: int = 500
    ) -> Iterator[Consumer]:
        how = {
            **self._at,
            "enable_auto_commit": False,
            "auto_offset_reset": {"refuse": "none", "earliest": "earliest"}[out_of_range],
            "fetch_max_wait_ms": max_wait_ms,
        }
        consumer = translated(lambda: kafka.KafkaConsumer(**how))
        with closing(consumer):
            consumer.assign([TopicPartition(topic, p) for p in positions])
            for partition, offset in positions.items():
                consumer.seek(TopicPartition(topic, partition), offset)
            yield KafkaPythonConsumer(consumer)

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        how = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": dict(config or {})}
        translated(lambda: self._admin.create_topics({topic: how}))

    def delete_topic(self, topic: str) -> None:
        translated(lambda: self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        translated(lambda: self._admin.create_partitions({topic: total}))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        tp = TopicPartition(topic, partition)
        return int(translated(lambda: self._admin.delete_records({tp: before}))[tp]["low_watermark"])

    def topics(self) -> dict[str, list[int]]:
        told = translated(lambda: self._admin.describe_topics())
        return {t["name"]: sorted(p["partition_index"] for p in t["partitions"]) for t in told}

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        tp = TopicPartition(topic, partition)
        return translated(lambda: (self._lookup.beginning_offsets([tp])[tp], self._lookup.end_offsets([tp])[tp]))

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        tp = TopicPartition(topic, partition)
        found = translated(lambda: self._lookup.offsets_for_times({tp: timestamp_ms}))[tp]
        return None if found is None else int(found.offset)

    def _config(self, kind: str, name: str) -> dict[str, str | None]:
        asked = [ConfigResource(kind.upper(), name)]
        told = translated(lambda: self._admin.describe_configs(asked, config_filter="all"))
        return {setting: entry["value"] for setting, entry in told[kind][name].items()}

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config("topic", topic)

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return self._config("broker", str(broker_id))

    def cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        told = translated(lambda: self._admin.describe_cluster())
        nodes = {b["broker_id"]: (b["host"], b["port"]) for b in told["brokers"]}
        return told["cluster_id"], told["controller_id"], nodes
