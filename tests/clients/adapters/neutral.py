"""What every client library can do, in words of our own, so that one story serves them all.

An adapter translates: `Record` and `Refused` go in and out, whatever the library calls them. It hides no behaviour: it
neither retries nor waits where its library does not.
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
"""No call into a client takes longer against a broker that is well."""

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
    """The client reports an error; `code` is Kafka's, or negative for an error that the client made up itself."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Producer(ABC):
    @abstractmethod
    def send(self, topic: str, record: Record) -> Future[int]:
        """Hand over; the future has the acknowledged offset (-1 with acks=0) or Refused. Order of calls is kept."""

    @abstractmethod
    def flush(self, timeout_s: float = CALL_S_MAX) -> None:
        """Return when everything sent is acknowledged or refused; AssertionError if it is not within the time."""


class Consumer(ABC):
    @abstractmethod
    def poll(self, timeout_s: float) -> list[Record]:
        """What has arrived, in order per partition; waits for something up to the time. Refused if the fetch was."""


class Client(ABC):
    name: str
    request_timeout_ms: int | None = None
    """Milliseconds that a producer waits for an answer, where the adapter knows how; None: as its library does."""

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
        """A producer that the client itself limits to no less than 16 MiB a request; leaving it flushes nothing."""

    @abstractmethod
    def consumer(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        out_of_range: Literal["refuse", "earliest"] = "refuse",
        max_wait_ms: int = 500,
    ) -> AbstractContextManager[Consumer]:
        """A consumer assigned to the partitions of `positions` at these offsets, without a group."""

    @abstractmethod
    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        """-1: as many replicas as the broker has for its default."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def create_partitions(self, topic: str, total: int) -> None: ...

    @abstractmethod
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """The new start of the partition."""

    @abstractmethod
    def topics(self) -> dict[str, list[int]]:
        """The partitions of each topic that the cluster's metadata tells, asked for now."""

    @abstractmethod
    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """(start, end) as ListOffsets tells them now."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose record is not older, None if there is none."""

    @abstractmethod
    def topic_config(self, topic: str) -> dict[str, str | None]: ...

    @abstractmethod
    def broker_config(self, broker_id: int) -> dict[str, str | None]: ...

    @abstractmethod
    def cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        """(cluster id, controller's broker id, {broker id: (host, port)})"""

    @abstractmethod
    def close(self) -> None:
        """Close what the calls above left open."""

    # -- what the stories say often ------------------------------------------------------------------------------

    def send_all(self, topic: str, records: Iterable[Record], **how: object) -> list[int]:
        """Send by one producer and return the acknowledged offsets; the first refusal is raised."""
        with self.producer(**how) as producer:  # type: ignore[arg-type]
            futures = [producer.send(topic, record) for record in records]
            producer.flush()
            return [future.result(0) for future in futures]

    def read(self, topic: str, count: int, start: int = 0, partition: int = 0, **how: object) -> list[Record]:
        """Exactly `count` records of a partition from an offset; AssertionError if they do not come."""
        with self.consumer(topic, {partition: start}, **how) as consumer:  # type: ignore[arg-type]
            return take(consumer, count)


def take(consumer: Consumer, count: int, timeout_s: float = CALL_S_MAX) -> list[Record]:
    """The next `count` records; AssertionError if fewer come in time, or more."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(records)} of {count} records came within {timeout_s} s"
        records += consumer.poll(min(left, 1.0))
    assert len(records) == count, f"{len(records)} records came, {count} were expected"
    return records
