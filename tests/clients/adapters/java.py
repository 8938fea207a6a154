"""Kafka's own Java client, in a separate JVM."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from tests.clients.adapters.neutral import CALL_S_MAX, Acks, Client, Consumer, Producer, Record, Refused
from tests.java.driver import Driver, DriverError
from tests.java.peers import VERSIONS
from tests.marks import long

LIMIT = 16 << 20
LATEST, EARLIEST = -1, -2
RECONNECT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
OLDER, NEWER = VERSIONS
JAVA = [long(OLDER), NEWER]
"""Parameters of a test that runs with each version: 4.1.1 behaves as 3.9.1."""
JVMS = {
    OLDER: [pytest.mark.java, pytest.mark.xdist_group(f"java-{OLDER}"), pytest.mark.long],
    NEWER: [pytest.mark.java, pytest.mark.xdist_group(f"java-{NEWER}")],
}
"""The marks of a test that uses the session's JVM: all of these run in one worker of pytest-xdist."""
_numbers = itertools.count()


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Handle:
    """One client object in the JVM."""

    def __init__(self, driver: Driver, op: str, **arguments: object) -> None:
        self._driver = driver
        self._name = f"{op} {next(_numbers)}"
        self.ask(op, **arguments)

    def start(self, op: str, **arguments: object) -> Future[Any]:
        return self._driver.call(self._name, op, **arguments)

    def ask(self, op: str, timeout_s: float = CALL_S_MAX, **arguments: object) -> Any:
        try:
            return self.start(op, **arguments).result(timeout_s)
        except DriverError as e:
            raise Refused(e.code, str(e)) from e

    def close(self, timeout_s: float = CALL_S_MAX) -> None:
        self.ask("close", timeout_ms=int(timeout_s * 1000))


class JavaProducer(Producer):
    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def send(self, topic: str, record: Record) -> Future[int]:
        future: Future[int] = Future()

        def answered(sent: Future[Any]) -> None:
            error = sent.exception()
            if isinstance(error, DriverError):
                future.set_exception(Refused(error.code, str(error)))
            else:
                future.set_result(sent.result())

        self._handle.start(
            "send",
            topic=topic,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            key=text(record.key),
            value=text(record.value),
            headers=[[name, text(value)] for name, value in record.headers],
        ).add_done_callback(answered)
        return future

    def flush(self, timeout_s: float = CALL_S_MAX) -> None:
        self._handle.ask("flush", timeout_s)


class JavaConsumer(Consumer):
    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def poll(self, timeout_s: float) -> list[Record]:
        polled = self._handle.ask("poll", timeout_ms=int(timeout_s * 1000))
        return [
            Record(data(value), data(key), tuple((n, data(v)) for n, v in headers), timestamp_ms, partition, offset)
            for value, key, headers, timestamp_ms, partition, offset in polled
        ]


class JavaClient(Client):
    def __init__(self, bootstrap: str, driver: Driver) -> None:
        super().__init__(bootstrap)
        self.name = f"java-{driver.version}"
        self._driver = driver
        self._conf: dict[str, Any] = {"bootstrap.servers": bootstrap, **RECONNECT}
        self._admin_handle: Handle | None = None

    def close(self) -> None:
        if self._admin_handle is not None:
            self._admin_handle.close()

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
        """A producer that is idempotent unless acks forbid it: this client's default."""
        conf = {
            "compression.type": codec,
            "acks": acks,
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "max.request.size": LIMIT,
        }
        handle = Handle(self._driver, "open_producer", config={**self._conf, **conf})
        try:
            yield JavaProducer(handle)
        except BaseException:
            handle.close(1)
            raise
        handle.close()

    @contextmanager
    def consumer(
        self, topic: str, positions: Mapping[int, int], *, out_of_range: str = "refuse", max_wait_ms: int = 500
    ) -> Iterator[Consumer]:
        conf = {
            "auto.offset.reset": {"refuse": "none", "earliest": "earliest"}[out_of_range],
            "fetch.max.wait.ms": max_wait_ms,
            "max.poll.records": 10_000,
            "enable.auto.commit": "false",
        }
        handle = Handle(
            self._driver, "open_consumer", config={**self._conf, **conf}, topic=topic, positions=dict(positions)
        )
        try:
            yield JavaConsumer(handle)
        finally:
            handle.close()

    def _admin(self, op: str, **arguments: object) -> Any:
        if self._admin_handle is None:
            self._admin_handle = Handle(self._driver, "open_admin", config=self._conf)
        return self._admin_handle.ask(op, **arguments)

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        how = {"partitions": partitions, "config": dict(config or {}), "replication_factor": replication_factor}
        self._admin("create_topic", topic=topic, **how)

    def delete_topic(self, topic: str) -> None:
        self._admin("delete_topic", topic=topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self._admin("create_partitions", topic=topic, total=total)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        return int(self._admin("delete_records", topic=topic, partition=partition, before=before)["low"])

    def topics(self) -> dict[str, list[int]]:
        return dict(self._admin("topics"))

    def _list_offset(self, topic: str, partition: int, at: int) -> int:
        return int(self._admin("list_offset", topic=topic, partition=partition, at=at)["offset"])

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        return self._list_offset(topic, partition, EARLIEST), self._list_offset(topic, partition, LATEST)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = self._list_offset(topic, partition, timestamp_ms)
        return None if offset < 0 else offset

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return dict(self._admin("config", type="TOPIC", name=topic))

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return dict(self._admin("config", type="BROKER", name=str(broker_id)))

    def cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        told = self._admin("cluster")
        nodes = {int(number): (host, port) for number, (host, port) in told["nodes"].items()}
        return told["id"], told["controller"], nodes
