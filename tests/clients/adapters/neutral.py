"""The operations that every client library has, in our own terms, so that one test serves them all.

An adapter translates the library's types to `Record` and `Refused`. It hides no behaviour: it neither retries nor waits
unless its library does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CALL_S_MAX = 30.0
"""The time limit of a client call against a healthy broker."""

Headers = tuple[tuple[str, bytes | None], ...]
Acks = Literal[0, 1, "all"]


class Record(NamedTuple):
    """A record to send (timestamp None: the client's clock) or one that was read (timestamp and offset are set)."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int = -1

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.value, self.key, self.headers


class Refused(Exception):
    """An error that the client reports; `code` is Kafka's, or negative for the client's own error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Producer(ABC):
    @abstractmethod
    def send(self, topic: str, record: Record) -> Future[int]:
        """Send; the future has the acknowledged offset (-1 with acks=0) or Refused. Order of calls is kept."""

    @abstractmethod
    def flush(self, timeout_s: float = CALL_S_MAX) -> None:
        """Return when every record is acknowledged or refused; AssertionError after the timeout."""


class Consumer(ABC):
    @abstractmethod
    def poll(self, timeout_s: float) -> list[Record]:
        """The records that have arrived, in order by partition; wait up to the timeout for the first. Refused if the
        fetch was refused."""


class Client(ABC):
    name: str
    request_timeout_ms: int | None = None
    """Milliseconds that a producer waits for an answer, if the adapter supports it; None: the library's default."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def producer(
        self,
        *,
        codec: str = "none",
        acks: Acks = "all",
        idempotent: bool = False,
        linger_ms: int = 5,
        batch_bytes: int = 16384,
    ) -> AbstractContextManager[Producer]:
        """A producer that accepts requests of at least 16 MiB; leaving it flushes nothing."""

    @abstractmethod
    def consumer(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        out_of_range: Literal["refuse", "earliest"] = "refuse",
        max_wait_ms: int = 500,
    ) -> AbstractContextManager[Consumer]:
        """A consumer that is assigned the partitions of `positions` at these offsets, without a group."""

    @abstractmethod
    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        """Create a topic; -1 replicas means the broker's default."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def create_partitions(self, topic: str, total: int) -> None: ...

    @abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete records, and return the partition's new start."""

    @abstractmethod
    def topics(self) -> dict[str, list[int]]:
        """The partitions of each topic in the cluster's metadata, requested now."""

    @abstractmethod
    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The (start, end) that ListOffsets returns now."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is not older, or None."""

    @abstractmethod
    def topic_config(self, topic: str) -> dict[str, str | None]: ...

    @abstractmethod
    def broker_config(self, broker_id: int) -> dict[str, str | None]: ...

    @abstractmethod
    def cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        """The (cluster id, controller's broker id, {broker id: (host, port)})."""

    @abstractmethod
    def close(self) -> None:
        """Close every client that the calls above left open."""

    # -- helpers of the tests ------------------------------------------------------------------------------------

    def send_all(self, topic: str, records: Iterable[Record], **how: object) -> list[int]:
        """Send with one producer and return the acknowledged offsets; the first refusal is raised."""
        with self.producer(**how) as producer:  # type: ignore[arg-type]
            futures = [producer.send(topic, record) for record in records]
            producer.flush()
            return [future.result(0) for future in futures]

    def read(self, topic: str, count: int, start: int = 0, partition: int = 0, **how: object) -> list[Record]:
        """Read exactly `count` records of a partition from an offset; AssertionError if they do not arrive."""
        with self.consumer(topic, {partition: start}, **how) as consumer:  # type: ignore[arg-type]
            return take(consumer, count)


def take(consumer: Consumer, count: int, timeout_s: float = CALL_S_MAX) -> list[Record]:
    """Take the next `count` records; AssertionError if fewer arrive in time, or more."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(records)} of {count} records came within {timeout_s} s"
        records += consumer.poll(min(left, 1.0))
    assert len(records) == count, f"{len(records)} records came, {count} were expected"
    return records
