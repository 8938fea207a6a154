"""A producer's batches, and the outcome of each of their records."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pybroker.core.batch.builder import SealedBatch

Bytes = bytes | bytearray | memoryview

def log_callback(kind: str) -> int:
    """Log the current exception, which a callback of this kind raised: at most one line per second for all kinds
    together. The next line has the number of exceptions that were not logged."""

class RecordMetadata(NamedTuple):
    """The position of an acknowledged record; `offset` is -1 with acks=0, as there is no response."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

class Delivery:
    """The outcome of one record, now or later."""

    def done(self) -> bool:
        """True if the outcome is known."""
    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """The position of the record. Raises the KafkaError of a failed record, TimeoutError without an outcome in
        time."""
    def exception(self, timeout_s: float | None = None) -> Any:
        """The KafkaError of a failed record; None if it is acknowledged. Raises TimeoutError without an outcome in
        time."""
    def add_done_callback(self, call: Callable[[Delivery], object]) -> None:
        """Call `call` with this delivery when its outcome is known: on the producer's thread, or at once if it is
        known already.

        Exceptions of `call` are logged. If it is called at once, SystemExit, KeyboardInterrupt and the like are
        raised."""

class PendingBatch:
    """Records of one partition that are sent together."""

    topic: Final[str]
    partition: Final[int]
    count: Final[int]
    size: Final[int]  # bytes, as counted against the producer's memory
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
        """A batch of bytes sealed before; created now, or at created_s, as the batch that it is a part of."""
    def seal(self, attributes: int, compress: Callable[[memoryview], Bytes] | None) -> SealedBatch:
        """Return its bytes, sealed by the first call; `attributes` name the codec that `compress` applies."""
    def delivery(self) -> Delivery:
        """A delivery for the whole batch, with the outcome of its first record."""
    def end(self, base_offset: int, log_append_time_ms: int, error: Exception | None) -> bool:
        """Set its outcome: its position, or the error. False, and nothing changes, if it has one."""
    def end_parts(self, parts: list[tuple[int, int, int, Exception | None]]) -> bool:
        """Set the outcome of a batch sent in parts: (first record, base offset, log append time, error) of each."""
    def abandon(self, error: Exception) -> None:
        """Set an error as the outcome in a forked process, which has the batch, but not the producer that sends it.
        Callbacks run only in the parent process."""
