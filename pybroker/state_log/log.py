"""The log that a coordinator keeps its state in: the leader replica of a partition of an internal topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pybroker import core
from pybroker.errors import CORRUPT_MESSAGE
from pybroker.model import TopicPartition

ACKS_ALL, ACKS_UNSAID = -1, -2
"""Requirements of an append: enough replicas in sync, or none."""

Pair = tuple[bytes, bytes | None]
"""The key and the value of a record."""


class StateLog(Protocol):
    """The leader replica of a partition of the topic."""

    @property
    def key(self) -> TopicPartition: ...
    @property
    def offline(self) -> bool: ...
    def partition(self) -> core.Partition: ...
    def pass_by(self, offset: int) -> int:
        """The first offset after the damage that a read found at `offset`. Raises core.LogError, OSError."""

    async def append(
        self, records: core.Bytes, now_ms: int, leader_epoch: int, acks: int, guard: int = 0, *, internal: bool = False
    ) -> core.Appended:
        """Append one batch in a leader epoch; with `acks` -1 only if enough replicas are in sync. `guard`, `internal`:
        see Partition.append. Raises KafkaError, core.LogError, OSError."""

    async def verify(self, producer_id: int, producer_epoch: int, base_sequence: int) -> int:
        """The guard of a producer's transaction, 0 if it is open here: see Partition.verify. Raises KafkaError."""

    async def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, now_ms: int
    ) -> core.Appended:
        """Append the marker that ends a producer's transaction. Raises as `append`, INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED."""

    async def committed(self, offset: int, leader_epoch: int) -> None:
        """Wait until the high watermark reaches `offset`, in this leader epoch. Raises NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if it does, with too few in-sync replicas; any other KafkaError if the outcome will not be known here."""


def read_batches(
    replica: StateLog, read_bytes: int, take: Callable[[memoryview, core.BatchHeader], object], *, pass_damage: bool
) -> int:
    """Call `take` with each batch to the end of the log, including those not committed yet: only for its leader.
    Return the offset up to which it was read.

    `pass_damage`: skip damaged batches, otherwise raise CORRUPT_MESSAGE. Runs on a thread. Raises KafkaError,
    core.LogError, OSError."""
    log = replica.partition()
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        try:
            data = _read(log, offset, read_bytes)
            if data is None:
                break
            for position, header in core.iter_batches(data):
                take(memoryview(data)[position : position + header.size], header)
                offset = header.last_offset + 1
        except core.LogError as problem:
            if problem.code != CORRUPT_MESSAGE or not pass_damage:
                raise
            offset = replica.pass_by(offset)
    return offset


def _read(log: core.Partition, offset: int, read_bytes: int) -> bytes | None:
    piece = log.read(offset, read_bytes, to_log_end=True).slice
    if piece is None:
        return None
    try:
        return piece.tobytes()
    finally:
        piece.close()
