"""Threads that append to several partitions in transactions, that copy a topic exactly once, and that read meanwhile.

    with Workload(bootstrap, history, "lists", partitions) as load:
        ...                          # faults
    load.judge()
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from typing import Self

import confluent_kafka as ck

import pybroker
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.harness import until
from tests.transactions.clients import GROUPS, WRITERS, Lost, MustAbort, Writer
from tests.transactions.history import Outcome, TransactionHistory

APPENDS_MAX = 5
ABORTED_OF = 5
"""One transaction in so many is aborted on purpose."""
TIMEOUT_MS = 10_000
SETTLED_S = 120.0
"""How long open transactions may take to end after the last fault: their timeout, and the coordinator's sweep."""


class Workload:
    """The threads of a run over topics that exist. `libraries`: of each writer and copier, by its place."""

    def __init__(
        self, bootstrap: str, history: TransactionHistory, *, lists: str, inputs: str, outputs: str, partitions: int,
        libraries: Sequence[str] = ("pybroker", "librdkafka"), seed: int = 0,
    ) -> None:  # fmt: skip
        self.history, self.copied = history, 0
        self._bootstrap, self._partitions = bootstrap, partitions
        self._lists, self._inputs, self._outputs = lists, inputs, outputs
        self._ended = threading.Event()
        work: list[Callable[[], None]] = [self._read]
        for n, library in enumerate(libraries):
            chance = random.Random(seed * 100 + n)
            work.append(lambda n=n, library=library, chance=chance: self._write(f"w{n}", library, chance))  # type: ignore[misc]
            work.append(lambda n=n, library=library: self._copy(f"c{n}", library))  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in work]
        self.failures: list[BaseException] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a client did not end"

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            self.failures.append(failure)
            raise

    # -- list-append ---------------------------------------------------------------------------------------------------

    def _write(self, name: str, library: str, chance: random.Random) -> None:
        made = WRITERS[library]
        client = made(self._bootstrap, name, TIMEOUT_MS)
        while not self._ended.is_set():
            try:
                self._transaction(client, name, chance)
            except Lost:
                client.close()
                client = made(self._bootstrap, name, TIMEOUT_MS)
        client.close()

    def _transaction(self, client: Writer, name: str, chance: random.Random) -> None:
        client.begin()
        transaction = self.history.begin(name)
        try:
            try:
                for _ in range(chance.randint(1, APPENDS_MAX)):
                    partition = chance.randrange(self._partitions)
                    element = transaction.append(partition)
                    client.send(
                        self._lists, partition, element.content,
                        lambda offset, element=element: transaction.offsets.update({element: offset}),  # type: ignore[misc]
                    )  # fmt: skip
                if chance.randrange(ABORTED_OF) == 0:
                    client.abort()
                    transaction.outcome = Outcome.ABORTED
                else:
                    client.commit()
                    transaction.outcome = Outcome.COMMITTED
            except MustAbort:
                client.abort()
                transaction.outcome = Outcome.ABORTED
        except MustAbort as still:
            transaction.outcome = Outcome.UNKNOWN
            raise Lost(str(still)) from still
        except Lost:
            transaction.outcome = Outcome.UNKNOWN
            raise

    # -- copies --------------------------------------------------------------------------------------------------------

    def _copy(self, name: str, library: str) -> None:
        while not self._ended.is_set():
            writer = WRITERS[library](self._bootstrap, name, TIMEOUT_MS)
            group = GROUPS[library](self._bootstrap, self._inputs, "copiers")
            try:
                while not self._ended.is_set():
                    records = group.poll()
                    if not records:
                        continue
                    writer.begin()
                    for partition, _, value in records:
                        writer.send(self._outputs, partition, value, lambda offset: None)
                    ends = {TopicPartition(self._inputs, p): offset + 1 for p, offset, _ in records}
                    writer.send_offsets(ends, group.metadata())
                    writer.commit()
                    self.copied += len(records)
            except MustAbort:  # the records are read again from the committed offsets
                with contextlib.suppress(MustAbort, Lost):
                    writer.abort()
            except Lost:
                pass
            finally:
                writer.close()
                group.close()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        consumer = ck.Consumer({
            "bootstrap.servers": self._bootstrap, "group.id": "readers", "enable.auto.commit": False, "log_level": 0,
            "isolation.level": "read_committed", "auto.offset.reset": "error", "socket.timeout.ms": 5000,
            "topic.metadata.refresh.interval.ms": 1000, "error_cb": lambda error: None,
        })  # fmt: skip
        consumer.assign([ck.TopicPartition(self._lists, p, 0) for p in range(self._partitions)])
        while not self._ended.is_set():
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    self.history.read(message.partition(), message.offset(), message.value() or b"")
                else:
                    self.history.problems.append(f"stable: the reader got {message.error()}")
        consumer.close()

    def found(self, topic: str) -> dict[int, list[tuple[int, bytes]]]:
        """The committed records of a topic, once its last transaction has ended."""
        partitions = [TopicPartition(topic, p) for p in range(self._partitions)]
        found: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(self._partitions)}
        plain = {"bootstrap_servers": self._bootstrap, "request_timeout_ms": 5000}
        with (
            pybroker.Consumer(**plain, isolation_level="read_committed") as consumer,  # type: ignore[arg-type]
            pybroker.Consumer(**plain) as everything,  # type: ignore[arg-type]
        ):
            def ended() -> bool:
                try:
                    return consumer.end_offsets(partitions) == everything.end_offsets(partitions)
                except KafkaError:
                    return False

            until("all transactions have ended", ended, timeout_s=SETTLED_S)
            ends = everything.end_offsets(partitions)
            consumer.assign(partitions)
            consumer.seek_to_beginning()

            def read() -> bool:
                for record in consumer.poll(500):
                    found[record.partition].append((record.offset, record.value or b""))
                return all(consumer.position(tp) >= end for tp, end in ends.items())

            until(f"{topic} is read to its end", read, timeout_s=SETTLED_S)
        return found

    def judge(self, inputs: dict[int, list[bytes]]) -> None:
        """Check all rules, once the copiers have copied the inputs and all transactions have ended."""
        assert self.failures == [], self.failures
        self.history.judge(self.found(self._lists))
        self.history.judge_copies(inputs, self.found(self._outputs))
        assert self.history.problems == [], self.history.problems
