"""The clients of a campaign: writers and readers (groups are in groups.py), each a thread that outlives the broker."""

from __future__ import annotations

import random
import threading
import time
import traceback
from concurrent.futures import CancelledError, Future

import confluent_kafka as ck

from tests.clients.adapters.neutral import CODECS, Client, Producer, Record, Refused
from tests.lives.history import History, Told

PENDING_MAX = 200
"""Records that a writer may have in flight."""
REQUEST_TIMEOUT_MS = 2000
"""Request timeout of some writers, which resend unanswered records while a fault lasts."""


class Worker(threading.Thread):
    """A thread that runs until it is stopped; an unexpected exception is a problem of the campaign."""

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
                where = "".join(traceback.format_exception(problem))
                self.history.accuse("client", f"{self.name}: {type(problem).__name__}: {problem}\n{where}")
                self.ended.wait(1)

    def work(self) -> None:
        raise NotImplementedError


class Writer(Worker):
    """Writes idempotent records with acks=all; a new producer (and writer name) starts at times and after errors."""

    def __init__(self, client: Client, history: History, topic: str, partitions: int, seed: int, rate: float) -> None:
        super().__init__(f"{client.name}-writer", history, topic, partitions, seed)
        self.client = client
        self.rate = rate
        self.producers = 0

    def work(self) -> None:
        writer = f"{self.client.name}-{self.producers}"
        self.producers += 1
        codec = self.random.choice(CODECS)
        self.client.request_timeout_ms = self.random.choice((None, REQUEST_TIMEOUT_MS))
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
    """Reads from the start or a random offset, and compares what it reads with the history."""

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
                    self.history.check_position(record.partition, record.offset, expected, self.name)
                    if record.offset > expected:
                        self.history.accuse("whole", f"{self.name}: partition {record.partition} goes on at "
                                                     f"{record.offset} after {expected - 1}")  # fmt: skip
                    self.history.read(record.partition, record.offset, record.value)
                    self.positions[record.partition] = record.offset + 1
        if self.random.random() < 0.2:  # read some records again
            self.positions = {p: self.random.randrange(o + 1) for p, o in self.positions.items()}
