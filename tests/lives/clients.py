"""The clients of a campaign: writers, readers and a group, each a thread that outlives the broker."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import CancelledError, Future
from contextlib import suppress

import confluent_kafka as ck

from tests.clients.adapters.confluent import QUIET
from tests.clients.adapters.neutral import CODECS, Client, Producer, Record, Refused
from tests.lives.history import History, Told

PENDING_MAX = 200
"""Records that a writer may have under way."""


class Worker(threading.Thread):
    """A thread that goes on until it is told to end; what it does not foresee is a problem of the campaign."""

    def __init__(self, name: str, history: History, topic: str, partitions: int, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.topic = topic
        self.partitions = partitions
        self.random = random.Random(f"{seed} {name}")
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.work()
            except (Refused, ck.KafkaException, TimeoutError, CancelledError, AssertionError):
                self.history.counts[f"{self.name} began anew"] += 1
                self.ended.wait(0.2)
            except Exception as problem:
                self.history.accuse("client", f"{self.name}: {type(problem).__name__}: {problem}")
                self.ended.wait(1)

    def work(self) -> None:
        raise NotImplementedError


class Writer(Worker):
    """Idempotent records with acks=all, a new producer (and so a new writer) every now and then, and after an error."""

    def __init__(self, client: Client, history: History, topic: str, partitions: int, seed: int, rate: float) -> None:
        super().__init__(f"{client.name}-writer", history, topic, partitions, seed)
        self.client = client
        self.rate = rate
        self.producers = 0

    def work(self) -> None:
        writer = f"{self.client.name}-{self.producers}"
        self.producers += 1
        codec = self.random.choice(CODECS)
        stop_at = time.monotonic() + self.random.uniform(20, 90)
        failed = threading.Event()
        with self.client.producer(codec=codec, idempotent=True, linger_ms=self.random.choice((0, 5, 20))) as producer:
            pending: set[Future[int]] = set()
            number = 0
            while not failed.is_set() and not (time.monotonic() > stop_at or self.ended.is_set()):
                if len(pending) < PENDING_MAX:
                    partition = self.random.randrange(self.partitions)
                    pending.add(self.send(producer, Told(writer, number), partition, failed))
                    number += 1
                pending = {future for future in pending if not future.done()}
                time.sleep(self.random.expovariate(self.rate))
            if not failed.is_set():
                producer.flush()

    def send(self, producer: Producer, told: Told, partition: int, failed: threading.Event) -> Future[int]:
        future = producer.send(self.topic, Record(told.content, partition=partition))

        def done(sent: Future[int]) -> None:
            if sent.exception() is not None:
                self.history.counts["refused"] += 1
                failed.set()
            elif sent.result() >= 0:
                self.history.acknowledged(partition, sent.result(), told)

        future.add_done_callback(done)
        return future


class Reader(Worker):
    """Reads on from the start, or from anywhere, and holds what it gets against what others know."""

    def __init__(self, client: Client, history: History, topic: str, partitions: int, seed: int) -> None:
        super().__init__(f"{client.name}-reader", history, topic, partitions, seed)
        self.client = client
        self.positions = dict.fromkeys(range(partitions), 0)

    def work(self) -> None:
        stop_at = time.monotonic() + self.random.uniform(20, 60)
        with self.client.consumer(self.topic, self.positions, out_of_range="earliest") as consumer:
            while not self.ended.is_set() and time.monotonic() < stop_at:
                for record in consumer.poll(0.5):
                    expected = self.positions[record.partition]
                    if record.offset > expected:
                        self.history.accuse("whole", f"{self.name}: partition {record.partition} goes on at "
                                                     f"{record.offset} after {expected - 1}")  # fmt: skip
                    self.history.read(record.partition, record.offset, record.value)
                    self.positions[record.partition] = record.offset + 1
        if self.random.random() < 0.2:  # read some of it again
            self.positions = {p: self.random.randrange(o + 1) for p, o in self.positions.items()}


class Group(Worker):
    """A member of a group, which commits where it stands, and asks where it stood whenever it comes back."""

    def __init__(self, bootstrap: str, history: History, topic: str, partitions: int, seed: int) -> None:
        super().__init__("group", history, topic, partitions, seed)
        self.bootstrap = bootstrap

    def work(self) -> None:
        consumer = ck.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "lives", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "session.timeout.ms": 6000, **QUIET,
        })  # fmt: skip
        try:
            self.check(consumer)
            consumer.subscribe([self.topic])
            stop_at = time.monotonic() + self.random.uniform(10, 40)
            while not self.ended.is_set() and time.monotonic() < stop_at:
                self.turn(consumer)
        finally:
            consumer.close()

    def check(self, consumer: ck.Consumer) -> None:
        asked = [ck.TopicPartition(self.topic, p) for p in range(self.partitions)]
        for told in consumer.committed(asked, timeout=10):
            if told.error is None:
                self.history.check_committed(told.partition, max(told.offset, 0))

    def turn(self, consumer: ck.Consumer) -> None:
        messages = [m for m in consumer.consume(100, 0.5) if m.error() is None]
        for message in messages:
            self.history.read(message.partition(), message.offset(), message.value())
        if messages:
            with suppress(ck.KafkaException):  # what is not acknowledged is not remembered
                for told in consumer.commit(asynchronous=False) or ():
                    if told.error is None and told.offset >= 0:
                        self.history.committed(told.partition, told.offset)
