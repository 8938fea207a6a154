"""Handles to logs for Python."""

from collections.abc import Mapping
from typing import NamedTuple

from pybroker.core.base.counters import Traffic

class Producer(NamedTuple):
    """A producer with an id, as its partition knows it."""

    producer_id: int
    epoch: int
    last_sequence: int  # -1: known by markers only
    last_timestamp_ms: int  # of its last batch or marker
    transaction_start_offset: int  # the first offset of its open transaction; -1: none is open
    coordinator_epoch: int  # of the last marker; -1: there was none

class Log:
    """A handle to one log: its watermarks, its retention, and its files. Every call releases the GIL while it touches
    files."""

    directory: str
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    recovery_point: int
    durable_offset: int  # all records below are on disk, but maybe not their indexes
    size: int  # bytes in all segments
    segment_count: int
    highest_producer_id: int  # -1: none yet
    traffic: Traffic  # since it was opened
    offline: bool
    slow_appends: bool  # an append recently waited long for the disk: threads that serve other clients must not append
    slow_reads: bool  # the same for reads
    recovery: str  # what start-up repaired, in one line; empty if nothing

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset): the largest known epoch <= epoch and where it ends; (-1, -1) if unknown (KIP-101)."""
    def set_log_start(self, offset: int) -> int:
        """Raise the log start offset for DeleteRecords (-1: to the high watermark); the new low watermark.
        LogError(OFFSET_OUT_OF_RANGE)."""
    def truncate(self, offset: int) -> None: ...
    def configure(self, config: Mapping[str, int]) -> None: ...
    def enforce_retention(self, now_ms: int) -> int:
        """Roll by age, and delete whole segments by retention.ms, retention.bytes and log start offset; the number
        deleted."""
    def expire_producers(self, now_ms: int) -> int: ...
    def producers(self) -> list[Producer]:
        """The active producers, in no order."""
    def epochs(self) -> list[tuple[int, int]]: ...
    def epoch_at(self, offset: int) -> int: ...
    def segments(self) -> list[tuple[int, int, int]]:
        """(base offset, bytes, largest timestamp) of each segment, oldest first."""
    def roll(self) -> None: ...
    def flush(self) -> int:
        """fdatasync unflushed segments and indexes; the new recovery point. LogError(KAFKA_STORAGE_ERROR)."""
    def write_checkpoints(self) -> None:
        """Make leader-epoch-checkpoint durable if it changed. Call before the recovery point is recorded."""
