"""Handles to partitions for Python, and the results of their calls."""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from pybroker.core import Bytes, Slice
from pybroker.core.log_handle import Log

class Read:
    """The result of a read: a slice that begins with the batch that holds the offset and ends at a batch boundary."""

    slice: Slice | None
    aborted_transactions: list[tuple[int, int]]
    """With isolation level 1: (producer id, first offset) of the aborted transactions that the slice has records of,
    in the order of their markers; perhaps some more that begin after it."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int

class Appended:
    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 unless LogAppendTime
    log_start_offset: int
    duplicate: bool  # the producer had written this batch already; nothing was appended

class Role(NamedTuple):
    """The role of this broker for a partition."""

    kind: Literal["offline", "follower", "leader"]
    leader: int  # the leader's broker id if this broker is not it; -1 unknown
    leader_epoch: int  # -1: none was ever known
    partition_epoch: int

class Follower(NamedTuple):
    """Another replica, as the leader knows it; -1 if it has not fetched yet in this leader epoch."""

    broker: int
    in_isr: bool  # in the maximal ISR, which includes replicas that are about to join
    broker_epoch: int
    log_end_offset: int  # its last fetch offset
    caught_up_ms: int  # when it last had all records
    log_start_offset: int  # its log start offset at that fetch

class Partition(Log):
    """A handle to one partition: its log, and its role. Every call releases the GIL while it touches files."""

    topic: str
    partition: int
    topic_id: bytes
    leader_epoch: int
    epoch_start: int  # the log end offset when it began to lead in this epoch
    is_end_certain: bool  # on a leader: no earlier leader's high watermark was higher
    role: Role  # offline until one of the become_ methods is called
    followers: list[Follower]  # known to the leader
    proven_ms: int  # on a leader: a monotonic time at which no other broker led in a later epoch; -1: unknown
    leader_throttled: bool
    follower_throttled: bool
    def throttle(self, *, leader: bool, follower: bool) -> None:
        """Set whether fetches by followers, and our own fetches, of this partition count as throttled replication."""
    def append(
        self, records: Bytes, *, now_ms: int, leader_epoch: int = -1, internal: bool = False, acks: int = -2,
        guard: int = 0,
    ) -> Appended:
        """Check, stamp and append exactly one batch from a client, as the leader; without followers the high watermark
        advances at once.

        `leader_epoch` -1 means the current one. `internal` skips the checks meant for clients (control batches). `acks`
        of the request: -1 requires enough replicas in sync, 0 and 1 a lease that has not lapsed, -2 neither. After a
        batch was refused for a temporary reason, the producer's next batches get the same error. Raises OSError, and
        LogError with the error code for the client.

        A transactional batch (from a client, or `internal`: offsets of a group) is refused with INVALID_TXN_STATE
        unless a transaction of its producer and epoch is open here, or `guard` is what verify() gave for it, or -1, as
        verification is switched off. A plain batch of a producer with an open transaction is refused with
        INVALID_TXN_STATE too."""
    def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, *, now_ms: int
    ) -> Appended:
        """Append the marker that ends a producer's transaction, as the leader, by the rules of acks=all; it is
        replicated once the high watermark passes it. Without an open transaction it is appended too, and only its
        epochs count. No limit of sizes applies.

        Raises LogError(INVALID_REQUEST) for a negative id or epoch, LogError(NOT_ENOUGH_REPLICAS,
        NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION) and OSError;
        LogError(INVALID_PRODUCER_EPOCH) if a later epoch of the producer is known here, and
        LogError(TRANSACTION_COORDINATOR_FENCED) if a later epoch of its coordinator is."""
    def verify(self, producer_id: int, producer_epoch: int, base_sequence: int) -> int:
        """0 if a transaction of this producer and epoch is open here: its batches can be appended. Else a guard: the
        coordinator is to be asked whether this partition is in the transaction (KIP-890), and the guard goes to
        append() with the batch. Every batch and marker of the producer drops it, and so does the end of leadership;
        until then each call gives the same. After a failed verification a batch with a higher first sequence than the
        lowest that was asked about is refused with OUT_OF_ORDER_SEQUENCE_NUMBER."""
    def append_replica(
        self,
        records: Bytes,
        *,
        leader_epoch: int = -1,
        high_watermark: int = (1 << 63) - 1,
        now_ms: int = 0,
        log_end: int = -1,
    ) -> int:
        """Append batches as the leader of this epoch (-1: ours) stamped them, as a follower (offsets must continue);
        the new log end offset. The high watermark advances up to the leader's; without one, to the log end. Nothing is
        appended if the log does not end at `log_end` (-1: wherever it ends): it was truncated after the fetch.

        `now_ms` gives the age of a segment whose records have no timestamps; 0 does not roll it."""
    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation_level: int = 0,
        to_log_end: bool = False,
        minimum_one: bool = True,
    ) -> Read:
        """The batches from `offset` up to max_bytes, below the high watermark (0), the last stable offset (1) or, for
        replicas, the log end offset. minimum_one: return the first batch even if it is larger. Raises
        LogError(OFFSET_OUT_OF_RANGE), with the range in the message, and LogError(KAFKA_STORAGE_ERROR), also while a
        bad transaction index is being built again."""
    def offset_for_timestamp(self, timestamp_ms: int, *, bound: int) -> tuple[int, int, int] | None:
        """(base offset, max timestamp, leader_epoch) of the first batch below `bound` whose max timestamp >=
        timestamp_ms; the caller searches the batch for the exact record."""
    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(offset, timestamp_ms, leader_epoch) of the record batch with the largest timestamp; None if empty."""
    def truncate(self, offset: int, *, leader_epoch: int = -1) -> None:
        """Truncate the log to `offset`. With a leader epoch only if this replica still follows in it, as the decision
        to truncate may be outdated. Raises LogError(OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH)."""
    def become_leader(
        self,
        leader_epoch: int,
        partition_epoch: int,
        *,
        followers: Sequence[int] = (),
        isr: Collection[int] | None = None,
        adding: Collection[int] = (),
        wait: bool = True,
    ) -> None:
        """Become leader in this leader epoch, which begins at the log end offset.

        followers: the brokers of the other replicas; isr: the followers that the high watermark waits for (None: all);
        adding: those that a reassignment adds, which count for min.insync.replicas once they are in the ISR.
        State of followers from an earlier leader epoch is dropped. Raises LogError(FENCED_LEADER_EPOCH) if our leader
        epoch is newer, LogError(INVALID_UPDATE_VERSION) if it is the same and our partition epoch is newer; so do the
        three methods below. Without `wait` it raises BlockingIOError if an append is running, which may be waiting for
        the disk; then nothing has changed."""
    def become_follower(self, leader: int, leader_epoch: int, partition_epoch: int, *, wait: bool = True) -> None:
        """Follow this broker (-1: the leader is unknown). The high watermark stays. `wait` as above."""
    def become_offline(self, leader_epoch: int, partition_epoch: int, *, leader: int = -1) -> None:
        """Neither lead nor follow; clients get this leader in errors (-1: none)."""
    def set_isr(
        self, isr: Collection[int], leader_epoch: int, partition_epoch: int, *, in_sync: int = -1
    ) -> None:
        """Set the maximal ISR of a leader. `in_sync`: the size of the ISR that the controller has, this broker
        included; -1: that of the maximal ISR. Raises LogError(NOT_LEADER_OR_FOLLOWER) too, and
        LogError(UNKNOWN_LEADER_EPOCH) in a newer epoch than ours."""
    @property
    def min_isr(self) -> int:
        """min.insync.replicas of the topic; with fewer replicas in sync the leader's high watermark does not
        advance."""
    @min_isr.setter
    def min_isr(self, replicas: int) -> None: ...
    @property
    def under_min_isr(self) -> bool:
        """True if fewer replicas are in sync than acks=all needs: min.insync.replicas, or all replicas if they are
        fewer."""
    def tell_all(self) -> None:
        """Wake every request that waits for this partition, so that it checks again."""
    def note_fetch(
        self, broker: int, offset: int, *, leader_epoch: int = -1, broker_epoch: int = -1, log_start: int = -1,
        session: int = 0, session_epoch: int = 0, now_ms: int,
    ) -> None:
        """Record a follower's fetch from `offset`: it has all records before it. leader_epoch and log_start: -1 if the
        request has none. session, session_epoch: its fetch session, and the request's number in it; 0: none. now_ms:
        monotonic.

        Raises LogError(OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH),
        LogError(UNKNOWN_LEADER_EPOCH), also if the broker is not a replica, and LogError(STALE_BROKER_EPOCH)."""
