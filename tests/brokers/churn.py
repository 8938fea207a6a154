"""Topics that are created, written, altered and deleted during the faults of a campaign."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from tests.brokers.kit import QUIET
from tests.lives.clients import Worker
from tests.lives.history import History, Told

PREFIX = "churn-"
RECORDS_MAX = 40
ANSWER_S = 8.0
TRIES_S = 60.0
TIMES: dict[str, Any] = {"request_timeout": ANSWER_S, "operation_timeout": ANSWER_S}
SETTINGS = {
    "segment.bytes": ("100000", "300000", "1000000"), "flush.messages": ("1", "9223372036854775807"),
    "index.interval.bytes": ("500", "4096"), "max.message.bytes": ("1000000", "1048588"),
}  # fmt: skip
EXISTS = (ck.KafkaError.TOPIC_ALREADY_EXISTS,)
GROWN = (ck.KafkaError.INVALID_PARTITIONS,)
GONE = (ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError._UNKNOWN_PARTITION, ck.KafkaError._UNKNOWN_TOPIC)


class Churn(Worker):
    """Creates a topic, writes to it, reads it back, adds partitions, and deletes it. Each step is retried until it is
    done, however often an answer is lost."""

    def __init__(self, bootstrap: str, history: History, topic: str, partitions: int, seed: int) -> None:
        super().__init__("churn", history, topic, partitions, seed)
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        self.made = 0
        self.left: set[str] = set()
        self.turn = threading.Lock()

    def work(self) -> None:
        while not self.ended.is_set():
            with self.turn:
                for name in list(self.left):
                    self.delete(name)
                self.made += 1
                name = f"{PREFIX}{self.made}"
                self.live(name)
                if self.delete(name) == 1 and self.random.random() < 0.3:  # so no other delete is in flight
                    self.live(name)
                    self.delete(name)
                self.alter(self.topic)
            self.ended.wait(self.random.uniform(0.1, 2))

    @contextmanager
    def resting(self, timeout_s: float) -> Iterator[bool]:
        """Pause between the lives of two topics; False if that takes too long, or a topic is left."""
        held = self.turn.acquire(timeout=timeout_s)
        try:
            yield held and not self.left
        finally:
            if held:
                self.turn.release()

    def live(self, name: str) -> None:
        """Create a topic, use it, and add partitions."""
        partitions = self.random.randrange(1, 4)
        self.left.add(name)
        self.done(lambda: self.admin.create_topics([NewTopic(name, partitions, 3)], **TIMES)[name], EXISTS)
        self.history.counts["topics that came"] += 1
        told = self.write(name)
        self.check(name, told)
        if self.random.random() < 0.3:
            more = NewPartitions(name, partitions + self.random.randrange(1, 3))
            self.done(lambda: self.admin.create_partitions([more], **TIMES)[name], GROWN)
            self.check(name, told)
        self.write(name)

    def delete(self, name: str) -> int:
        tries = self.done(lambda: self.admin.delete_topics([name], **TIMES)[name], GONE)
        self.history.counts["topics that went"] += 1
        self.left.discard(name)
        return tries

    def end(self) -> None:
        """Delete all topics that are left, also those whose creation finished late; the cluster must be healthy."""
        for name in [name for name in self.admin.list_topics(timeout=10).topics if name.startswith(PREFIX)]:
            self.delete(name)

    def alter(self, name: str) -> None:
        setting = self.random.choice(list(SETTINGS))
        value = self.random.choice(SETTINGS[setting])
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        self.done(lambda: self.admin.incremental_alter_configs([resource], request_timeout=ANSWER_S)[resource])
        self.history.counts["settings altered"] += 1

    def done(self, ask: Callable[[], Any], fine: tuple[int, ...] = ()) -> int:
        """Retry until a request succeeds, or fails because an earlier try has succeeded; return the number of tries.
        TimeoutError if neither happens."""
        tries, deadline = 0, time.monotonic() + TRIES_S
        while time.monotonic() < deadline:
            tries += 1
            try:
                ask().result(ANSWER_S + 5)
                return tries
            except ck.KafkaException as problem:
                if problem.args[0].code() in fine:
                    return tries
            time.sleep(0.1)
        raise TimeoutError(f"not within {TRIES_S} s")

    def write(self, name: str) -> dict[int, Told]:
        """Write to partition 0; return the acknowledged records by offset."""
        told: dict[int, Told] = {}
        writer = f"{name}-{self.random.randrange(1 << 60)}"
        producer = ck.Producer({
            "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "message.timeout.ms": 60_000, **QUIET
        })  # fmt: skip

        def delivered(error: ck.KafkaError | None, message: ck.Message, record: Told) -> None:
            if error is None and (offset := message.offset()) is not None and offset >= 0:
                told[offset] = record

        for number in range(self.random.randrange(RECORDS_MAX)):
            record = Told(writer, number)
            producer.produce(
                name, record.content, partition=0, on_delivery=lambda e, m, record=record: delivered(e, m, record)
            )
        producer.flush(70)
        return told

    def check(self, name: str, told: dict[int, Told]) -> None:
        """Check that all these records are there, read by another client."""
        consumer = ck.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "churn", "enable.auto.commit": False, **QUIET
        })  # fmt: skip
        consumer.assign([ck.TopicPartition(name, 0, 0)])
        missing, deadline = dict(told), time.monotonic() + TRIES_S
        places: dict[bytes | None, int | None] = {}
        reached = 0
        while missing and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.5):
                if message.error() is None:
                    reached = max(reached, (message.offset() or 0) + 1)
                    first = places.setdefault(message.value(), message.offset())
                    if first != message.offset():
                        found = f"{message.value()!r} is at {first} and {message.offset()}"
                        self.history.accuse("once", f"{name}: {found}")
                if message.error() is None and (record := missing.pop(message.offset(), None)) is not None:
                    self.judge(name, message, record)
        consumer.close()
        behind = [offset for offset in missing if offset < reached]
        if behind:
            self.history.counts["lost"] += len(behind)
            found = f"{len(behind)} acknowledged records are not read, first {min(behind)}"
            self.history.accuse("kept", f"{name}: {found}")
        elif missing:  # whether they exist is unknown
            self.history.accuse("back", f"{name} is not read beyond {reached} within {TRIES_S} s")

    def judge(self, name: str, message: ck.Message, record: Told) -> None:
        if message.value() != record.content:
            self.history.counts["lost"] += 1
            self.history.accuse("kept", f"{name} offset {message.offset()} has {message.value()!r}, not {record}")
