"""A consumer of another client library in a group, on a thread, so that there is a group to describe."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Self

import confluent_kafka as ck

from tests.harness import until


class Reader:
    """A thread that reads a topic in a group, and commits its progress, until the context ends."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: Any) -> None:
        self.assigned: set[int] = set()
        self.count = 0
        self._stop = threading.Event()
        common = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
        timing = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300, "enable.auto.commit": False}
        if config.get("group.protocol") == "consumer":
            timing = {"enable.auto.commit": False}
        self._consumer = ck.Consumer({**common, **timing, **config})
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = [message for message in self._consumer.consume(100, 0.05) if message.error() is None]
            self.assigned = {tp.partition for tp in self._consumer.assignment()}
            if messages:
                self._consumer.commit(asynchronous=False)
                self.count += len(messages)
        self._consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        until("the consumer has partitions", lambda: self.assigned)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def write(bootstrap: str, topic: str, count: int, *, partition: int = 0, timestamp_ms: int = 0) -> None:
    """Write `count` records, each a number; all with one timestamp, or with the present time if it is 0."""
    producer = ck.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=partition, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def commit(bootstrap: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets of a topic's partitions as a consumer without group membership does."""
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[ck.TopicPartition(topic, p, o) for p, o in offsets.items()], asynchronous=False)
    consumer.close()


def stored(bootstrap: str, topic: str, partitions: int = 1) -> list[ck.Message]:
    """Every record of a topic as another client library reads it, partition by partition."""
    common = {"bootstrap.servers": bootstrap, "group.id": "-", "log_level": 0}
    consumer = ck.Consumer({**common, "fetch.wait.max.ms": 50})
    found: list[ck.Message] = []
    for partition in range(partitions):
        _, end = consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), timeout=30)
        consumer.assign([ck.TopicPartition(topic, partition, 0)])
        deadline_s = time.monotonic() + 60
        mine: list[ck.Message] = []
        while len(mine) < end:
            assert time.monotonic() < deadline_s, f"{len(mine)} of {end} records of {topic}-{partition}"
            mine += [message for message in consumer.consume(end - len(mine), 0.1) if message.error() is None]
        found += mine
    consumer.close()
    return found
