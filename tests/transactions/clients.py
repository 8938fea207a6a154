"""Transactional clients of several libraries behind one interface, for workloads that have to survive faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import confluent_kafka as ck

import pybroker
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

CALL_S = 20.0
"""How long one call of a client may take during faults."""
POLL_S = 0.2


class MustAbort(Exception):
    """The transaction cannot be committed; an abort is possible."""


class Lost(Exception):
    """The client cannot go on: the outcome of its transaction is unknown."""


class Writer(Protocol):
    """A producer with a transactional id. Each call raises MustAbort or Lost."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: bytes, acked: Callable[[int], object]) -> None:
        """Send; `acked` is called with the offset of the acknowledged record."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: Any) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """End the client; raises nothing."""


class Own:
    """pybroker's producer."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int) -> None:
        self._producer = pybroker.Producer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms,
            max_block_ms=int(CALL_S * 1000), delivery_timeout_ms=int(CALL_S * 1000), request_timeout_ms=5000,
        )  # fmt: skip

    def begin(self) -> None:
        self._made(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: bytes, acked: Callable[[int], object]) -> None:
        def done(delivery: pybroker.Delivery) -> None:
            if delivery.exception(0) is None:
                acked(delivery.result(0).offset)

        self._made(lambda: self._producer.send(topic, value, partition=partition, on_delivery=done))

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: Any) -> None:
        self._made(lambda: self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._made(self._producer.commit_transaction)

    def abort(self) -> None:
        self._made(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(0)

    def _made(self, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaError as error:
            stage = self._producer._transactions.stage.name if self._producer._transactions else ""
            raise (MustAbort if stage in ("OPEN", "FAILED") else Lost)(str(error)) from error


class Librdkafka:
    """confluent-kafka's producer."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int) -> None:
        self._producer = ck.Producer({
            "bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": min(timeout_ms, int(CALL_S * 1000)), "linger.ms": 1, "log_level": 0,
            "socket.timeout.ms": 5000, "topic.metadata.refresh.interval.ms": 1000,
            "error_cb": lambda error: None,
        })  # fmt: skip
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._made(lambda: self._producer.init_transactions(CALL_S))
            self._begun = True
        self._made(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: bytes, acked: Callable[[int], object]) -> None:
        def done(error: Any, message: Any) -> None:
            if error is None and message.offset() is not None:
                acked(message.offset())

        self._made(lambda: self._producer.produce(topic, value, partition=partition, on_delivery=done))
        self._producer.poll(0)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: Any) -> None:
        named = [ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        self._made(lambda: self._producer.send_offsets_to_transaction(named, group, CALL_S))

    def commit(self) -> None:
        self._made(lambda: self._producer.commit_transaction(CALL_S))

    def abort(self) -> None:
        self._made(lambda: self._producer.abort_transaction(CALL_S))

    def close(self) -> None:
        """Leave it to the collector: librdkafka's destructor ends the producer without a flush."""

    def _made(self, call: Callable[[], object]) -> None:
        try:
            call()
        except ck.KafkaException as failure:
            error = failure.args[0]
            raise (MustAbort if error.txn_requires_abort() else Lost)(str(error)) from failure
        except BufferError as full:
            raise MustAbort(str(full)) from full


WRITERS: dict[str, Callable[[str, str, int], Writer]] = {"pybroker": Own, "librdkafka": Librdkafka}
"""By library: (bootstrap servers, transactional id, transaction timeout in ms) -> a client."""


class Group(Protocol):
    """A consumer in a group that reads committed records and does not commit by itself."""

    def poll(self) -> list[tuple[int, int, bytes]]:
        """(partition, offset, value) of the next records. Lost if the consumer cannot go on."""

    def metadata(self) -> Any:
        """The group, as a writer of the same library takes it."""

    def close(self) -> None: ...


class OwnGroup:
    """pybroker's consumer."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = pybroker.Consumer(
            topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, max_poll_records=20,
            auto_offset_reset="earliest", isolation_level="read_committed", request_timeout_ms=5000,
        )  # fmt: skip

    def poll(self) -> list[tuple[int, int, bytes]]:
        try:
            return [(r.partition, r.offset, r.value or b"") for r in self._consumer.poll(int(POLL_S * 1000))]
        except KafkaError as error:
            raise Lost(str(error)) from error

    def metadata(self) -> Any:
        try:
            return self._consumer.group_metadata()
        except KafkaError as error:
            raise MustAbort(str(error)) from error

    def close(self) -> None:
        self._consumer.close(2000)


class LibrdkafkaGroup:
    """confluent-kafka's consumer."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = ck.Consumer({
            "bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0,
            "auto.offset.reset": "earliest", "isolation.level": "read_committed", "socket.timeout.ms": 5000,
            "topic.metadata.refresh.interval.ms": 1000, "error_cb": lambda error: None,
        })  # fmt: skip
        self._consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, int, bytes]]:
        found = []
        for message in self._consumer.consume(20, POLL_S):
            if message.error() is None:
                found.append((message.partition(), message.offset(), message.value() or b""))
            elif not message.error().retriable():
                raise Lost(str(message.error()))
        return found

    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


GROUPS: dict[str, Callable[[str, str, str], Group]] = {"pybroker": OwnGroup, "librdkafka": LibrdkafkaGroup}
"""By library: (bootstrap servers, topic, group) -> a consumer."""
