"""A broker that appends as Kafka's do, with idempotent producers' sequences, and fails at random."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from pybroker import core, errors
from pybroker.protocol import messages as m
from pybroker.protocol.compression import open_batch
from tests.client.fake_broker import Answers, FakeBroker, Reset

REMEMBERED = 5
"""The number of a producer's last batches that are recognised as duplicates."""


class _Known:
    """The state of one producer in one partition."""

    def __init__(self) -> None:
        self.epoch, self.sequence = -1, 0
        self.recent: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED)


class UnreliableBroker(FakeBroker):
    """The leader of all partitions of every topic. `chance`: the probability of each fault, see `_produced` and
    `_append`."""

    def __init__(
        self, partitions: int, seed: int = 0, chance: Mapping[str, float] | None = None, bytes_max: int = 1 << 30
    ) -> None:
        self.chance = dict(chance or {})
        self.log: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        self.happened: Counter[str] = Counter()
        self._bytes_max = bytes_max
        self._random = random.Random(seed)
        self._known: dict[tuple[int, int], _Known] = {}
        self._ids = 100
        self._lock = threading.Lock()
        answers: Answers = {"InitProducerId": self._producer_id, "Produce": self._produced}
        super().__init__(answers, {"Produce": 9, "Metadata": 9})
        self.bootstrap = f"127.0.0.1:{self.port}"

    def __enter__(self) -> UnreliableBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def appending(self, partition: int, batch: bytes) -> None:
        """Called before a batch is checked; a test may replace it."""

    def _happens(self, what: str) -> bool:
        happens = self._random.random() < self.chance.get(what, 0)
        self.happened[what] += happens
        return happens

    def sent(self, name: str) -> None:
        if name == "Produce" and self._happens("reset after the answer"):
            raise Reset

    def _metadata(self, request: Any) -> Any:
        answer = super()._metadata(request)
        leader = -1 if self._happens("no leader") else 1
        kind = m.MetadataResponse.Topics.Partitions
        for topic in answer.topics:
            topic.partitions = [
                kind(partition_index=p, leader_id=leader, replica_nodes=[1], isr_nodes=[1]) for p in self.log
            ]
        return answer

    def _producer_id(self, _: Any) -> Any:
        self._ids += 1
        return m.InitProducerIdResponse(producer_id=self._ids, producer_epoch=0)

    def _produced(self, request: Any) -> Any:
        if self._happens("slow"):
            time.sleep(0.05 * self._random.random())
        if self._happens("reset"):
            raise Reset
        if self._happens("closed before"):
            raise ConnectionError
        kind = m.ProduceResponse.Responses
        with self._lock:
            told = [
                kind(name=topic.name, partition_responses=[
                    self._append(data.index, bytes(data.records)) for data in topic.partition_data
                ])
                for topic in request.topic_data
            ]  # fmt: skip
        if self._happens("closed after"):
            raise ConnectionError
        return m.ProduceResponse(responses=told, throttle_time_ms=30 * self._happens("throttled"))

    def _append(self, partition: int, batch: bytes) -> Any:
        def told(code: int, offset: int = -1) -> Any:
            return m.ProduceResponse.Responses.PartitionResponses(index=partition, error_code=code, base_offset=offset)

        self.appending(partition, batch)
        header = core.check_batch(batch)
        if self._happens("not leader"):
            return told(errors.NOT_LEADER_OR_FOLLOWER)
        if len(batch) > self._bytes_max and header.count > 1:
            self.happened["too large"] += 1
            return told(errors.MESSAGE_TOO_LARGE)
        if self._happens("refused"):
            return told(errors.INVALID_RECORD)
        log = self.log[partition]
        base = len(log)
        if header.producer_id >= 0:
            known = self._known.setdefault((partition, header.producer_id), _Known())
            code, repeated = self._sequence(known, header, base)
            if code or repeated >= 0:
                return told(code, repeated)
        log += [bytes(value or b"") for _, _, _, value, _ in core.walk_records(open_batch(batch, header), header)]
        return told(errors.REQUEST_TIMED_OUT if self._happens("timed out after") else errors.NONE, base)

    def _sequence(self, known: _Known, header: Any, base: int) -> tuple[int, int]:
        """The (error, offset of an earlier copy of the batch, or -1); without both, record the batch as appended."""
        if header.producer_epoch < known.epoch:
            return errors.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                return errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known.epoch, known.sequence = header.producer_epoch, 0
            known.recent.clear()
        for sequence, count, offset in known.recent:
            if (sequence, count) == (header.base_sequence, header.count):
                return errors.NONE, offset
        if header.base_sequence != known.sequence:
            return errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        known.sequence += header.count
        known.recent.append((header.base_sequence, header.count, base))
        return errors.NONE, -1
