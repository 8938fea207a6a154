"""Batches on their way to a broker, and the outcome of each of their records."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pybroker.core.batch.builder import SealedBatch

Bytes = bytes | bytearray | memoryview

def log_callback(kind: str) -> int:
    """Log the exception that is being handled, which a callback of this kind raised: one line a second at most, for all
    kinds together. The next line counts those that had none."""

class RecordMetadata(NamedTuple):
    """Where an acknowledged record lies; `offset` is -1 with acks=0, when nobody says."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

class Delivery:
    """The outcome of one record that was sent, now or later."""

    def done(self) -> bool:
        """Whether the outcome is known."""
    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record lies. Raises the KafkaError that refused it, TimeoutError if neither is known in time."""
    def exception(self, timeout_s: float | None = None) -> Any:
        """Why the record was refused, a KafkaError; None if acknowledged. TimeoutError if nobody knows in time."""
    def add_done_callback(self, call: Callable[[Delivery], object]) -> None:
        """Call `call` with this delivery once its outcome is known: on the producer's thread; at once if it is known.

        Its exceptions are logged. If it is called at once, SystemExit, KeyboardInterrupt and the like are raised."""

class PendingBatch:
    """Records of one partition that are sent together."""

    topic: Final[str]
    partition: Final[int]
    count: Final[int]
    size: Final[int]  # bytes, as counted against the memory of its producer
    created_s: Final[float]  # of time.monotonic()
    sealed: Final[SealedBatch | None]
    producer_id: int
    epoch: int
    sequence: int  # of its first record, -1: none yet
    attempts: int
    ended: Final[bool]
    base_offset: Final[int]
    log_append_time_ms: Final[int]
    error: Final[Exception | None]
    @staticmethod
    def of(topic: str, partition: int, sealed: SealedBatch, created_s: float | None = None) -> PendingBatch:
        """A batch that is sealed already; made now, or as long ago as another that it is a part of."""
    def seal(self, attributes: int, compress: Callable[[memoryview], Bytes] | None) -> SealedBatch:
        """Its bytes, made when first asked for; `attributes` name the codec that `compress` applies."""
    def delivery(self) -> Delivery:
        """The outcome of the whole batch, told as that of its first record."""
    def end(self, base_offset: int, log_append_time_ms: int, error: Exception | None) -> bool:
        """Its outcome: where it lies, or why not. False, and nothing changes, if it has one."""
    def end_parts(self, parts: list[tuple[int, int, int, Exception | None]]) -> bool:
        """Of a batch that was sent in parts: (first record, base offset, log append time, error) of each."""
    def abandon(self, error: Exception) -> None:
        """A process that was forked has the batch, and not the producer that sends it: whoever asks here is told the
        error. What was to be called is called in the other process."""
