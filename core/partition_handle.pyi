"""A partition as Python holds it, and what its calls give."""

from pybroker.core import Bytes, Slice
from pybroker.core.log_handle import Log

class Read:
    """What a read found: a slice that begins with the batch holding the offset and ends at a batch boundary."""

    slice: Slice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int

class Appended:
    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 unless LogAppendTime
    log_start_offset: int
    duplicate: bool  # the batch was in the producer's window; nothing was appended

class Partition(Log):
    """A handle to one partition: its log, and who may write to it. Every call releases the GIL while it touches
    files."""

    topic: str
    partition: int
    topic_id: bytes
    leader_epoch: int
    def append(self, records: Bytes, *, now_ms: int, leader_epoch: int = -1, internal: bool = False) -> Appended:
        """Check, stamp and append exactly one batch from a client; the high watermark follows (one replica).

        `leader_epoch` -1 means the current one. `internal` skips the checks meant for clients (control batches).
        Raises LogError: 2, 10, 18, 32, 43, 45, 47, 48, 56, 74, 75, 76, 87."""
    def append_replica(self, records: Bytes, *, now_ms: int = 0) -> int:
        """Append batches as a leader stamped them (offsets must continue); the new log end offset.

        `now_ms` tells the age of a segment whose records carry no timestamps, of which 0 rolls none."""
    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation_level: int = 0,
        to_log_end: bool = False,
        minimum_one: bool = True,
    ) -> Read:
        """The batches from `offset` up to max_bytes, within the high watermark (0), the last stable offset (1) or, for
        replicas, the log end. minimum_one: the first batch is returned even if larger. Raises LogError 1 (with the
        range in the message), 56."""
    def offset_for_timestamp(self, timestamp_ms: int, *, bound: int) -> tuple[int, int, int] | None:
        """(offset, timestamp_ms, leader_epoch) of the first batch below `bound` whose max timestamp >= timestamp_ms and
        its base offset; the caller walks the batch for the exact record."""
    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp_ms, leader_epoch) of the record batch with the largest timestamp; None if empty."""
    def become_leader(self, leader_epoch: int, partition_epoch: int) -> None: ...
