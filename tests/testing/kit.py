"""Helpers that the tests of this folder share: operations of other projects' clients, in a line each."""

from __future__ import annotations

import time
import warnings

from confluent_kafka import Consumer, Producer

with warnings.catch_warnings():
    # It reads its schemas with a deprecated call.
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer as KafkaConsumer
    from kafka import KafkaProducer as KafkaProducer

from tests.marks import long

ANSWER_S_MAX = 30.0


def send(producer: Producer, topic: str, *values: str, **how: int) -> list[str | None]:
    """Produce and wait; return the name of the error, or None, of each delivery."""
    told: list[str | None] = []
    for value in values:
        # By its name: to compare the error itself with None leaves an exception behind.
        producer.produce(topic, value, on_delivery=lambda e, _: told.append(None if e is None else e.name()), **how)
    assert producer.flush(ANSWER_S_MAX) == 0
    return told


def read(consumer: Consumer, count: int, timeout_s: float = ANSWER_S_MAX) -> list[bytes]:
    """The values of the next `count` records; fewer if they do not arrive in time."""
    values: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    while len(values) < count and (left := deadline - time.monotonic()) > 0:
        message = consumer.poll(min(left, 0.2))
        if message is not None and message.error() is None:
            values.append(message.value())
    return values


class Kind(dict[str, str]):
    """The way in which a cluster is started."""

    def __init__(self, mode: str, store: str) -> None:
        super().__init__(mode=mode, store=store)
        self.mode = mode
        self.store = store

    def __str__(self) -> str:
        return f"{self.mode}-{self.store}"


KINDS = [
    Kind("inprocess", "memory"),
    long(Kind("inprocess", "zookeeper")),  # the other kinds cover its mode and its store
    Kind("subprocess", "zookeeper"),
    long(Kind("inprocess", "etcd")),
    Kind("subprocess", "etcd"),
]
