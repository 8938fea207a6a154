"""Clients of one partition during faults: one writes, one reads, and a history judges them.

    with Witness(cluster, topic) as witness:    # an idempotent producer with acks=all, and a consumer behind it
        witness.until_acked(50)
        ...                                     # the fault, and its end
        witness.judge()                         # each record is there once, at its offset; replicas are identical
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import confluent_kafka as ck

from tests.brokers.kit import QUIET, Cluster
from tests.harness import until
from tests.lives.history import History, Told

WRITER = "witness"
ALONE = b"alone"
"""A record of another client, which may be acknowledged though only one broker has it."""
EVERY_S = 0.005
READ_S_MAX = 30.0
SILENT_MS = 4000
"""A client asks another broker for metadata after this long without an answer. It may have a connection to no other one
than a broker that is frozen, and waits for a minute by default."""


class Witness:
    """The clients of partition 0 of a topic; a record is written every 5 ms, until `judge`."""

    def __init__(self, cluster: Cluster, topic: str, **settings: object) -> None:
        """`settings` are added to the producer's."""
        self.history = History()
        self.history.batch_of = lambda partition, offset: cluster.batch_of(topic, partition, offset)
        self.times: list[float] = []
        self.failed: list[str] = []
        self._cluster = cluster
        self._topic = topic
        self._sent = 0
        self._alone = 0
        self._somewhere: set[bytes] = set()
        own = {name.replace("_", "."): value for name, value in settings.items()}
        self._producer = ck.Producer({
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0,
            "message.timeout.ms": 60_000, "topic.metadata.refresh.interval.ms": 1000, "request.timeout.ms": 3000,
            "socket.timeout.ms": SILENT_MS, **QUIET, **own,
        })  # fmt: skip
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]

    def __enter__(self) -> Witness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    # -- clients -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while not self._ended.is_set():
            told = Told(WRITER, self._sent)
            self._producer.produce(
                self._topic, told.content, partition=0, on_delivery=lambda e, m, told=told: self._told(e, m, told)
            )
            self._sent += 1
            self._producer.poll(EVERY_S)

    def _told(self, error: Any, message: Any, told: Told) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        self.times.append(time.monotonic())
        if message.offset() is None:  # a duplicate batch was acknowledged without its offset
            self._somewhere.add(told.content)
        else:
            self.history.acknowledged(0, message.offset(), told)

    def _consumer(self) -> ck.Consumer:
        consumer = ck.Consumer({
            "bootstrap.servers": self._cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False,
            "auto.offset.reset": "error", "topic.metadata.refresh.interval.ms": 1000, "socket.timeout.ms": SILENT_MS,
            **QUIET,
        })  # fmt: skip
        consumer.assign([ck.TopicPartition(self._topic, 0, 0)])
        return consumer

    def _read(self) -> None:
        consumer = self._consumer()
        while not self._ended.is_set():
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    self.history.read(0, message.offset(), _content(message))
                else:
                    self.failed.append(f"read: {message.error()}")
        consumer.close()

    # -- what was acknowledged ---------------------------------------------------------------------------------------

    @property
    def acked(self) -> int:
        return len(self.times)

    def until_acked(self, more: int = 50, timeout_s: float = 60.0) -> None:
        """Wait until this many more records are acknowledged."""
        goal = self.acked + more
        until(f"{more} more records are acknowledged", lambda: self.acked >= goal, timeout_s=timeout_s)

    def until_quiet(self, quiet_s: float = 0.5) -> None:
        until("nothing is acknowledged", lambda: time.monotonic() - self.times[-1] > quiet_s)

    def stays_quiet(self, quiet_s: float) -> None:
        """Check that no record is acknowledged for this long."""
        acked, end = self.acked, time.monotonic() + quiet_s
        while time.monotonic() < end:
            assert self.acked == acked
            time.sleep(EVERY_S)

    def gap_s(self, since: float = 0.0) -> float:
        """The longest time in seconds between two acknowledgements after `since`."""
        times = [each for each in self.times if each >= since]
        return max(later - earlier for earlier, later in pairwise(times))

    # -- the end -----------------------------------------------------------------------------------------------------

    def judge(self, alone: int | None = 0) -> None:
        """Stop both clients. Check that each acknowledged record is read once, at its offset, and that the replicas are
        identical. `alone` is the number of b"alone" records of other clients there; None allows any."""
        self.__exit__()
        assert self._producer.flush(60) == 0
        assert not self.failed, self.failed
        assert self.acked == self._sent
        end: list[int] = []
        consumer = self._consumer()

        def told() -> bool:
            try:
                end.append(consumer.get_watermark_offsets(ck.TopicPartition(self._topic, 0), timeout=5)[1])
            except ck.KafkaException:
                return False
            return end[-1] >= self.acked

        until("the leader says where it ends", told)
        self.history.check_log(0, self._log(consumer, end[-1]), 0, end[-1])
        consumer.close()
        assert self.history.problems == [], self.history.problems
        assert not self._somewhere, "acknowledged, and nowhere"
        assert alone is None or self._alone == alone
        until("replicas are the same", lambda: self._cluster.differing(self._topic) == [])

    def _log(self, consumer: ck.Consumer, end: int) -> Iterator[tuple[int, bytes | None]]:
        at, deadline = 0, time.monotonic() + READ_S_MAX
        while at < end and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None
                self._alone += message.value() == ALONE
                self._somewhere.discard(message.value())
                yield message.offset(), _content(message)
                at = message.offset() + 1


def _content(message: ck.Message) -> bytes | None:
    """The content of a record in the form that the history uses."""
    value: bytes | None = message.value()
    return Told("somebody", message.offset()).content if value == ALONE else value
