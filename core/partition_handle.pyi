"""A partition as Python holds it, and what its calls give."""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

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

class Role(NamedTuple):
    """What this broker believes of a partition."""

    kind: Literal["offline", "follower", "leader"]
    leader: int  # the broker that leads where this one does not; -1 unknown
    leader_epoch: int  # -1 none was ever known
    partition_epoch: int

class Follower(NamedTuple):
    """Another replica, as the leader knows it; -1 where it did not fetch yet in this leader epoch."""

    broker: int
    in_isr: bool  # of the maximal ISR: with those that are about to join it
    broker_epoch: int
    log_end_offset: int  # where it last fetched from
    caught_up_ms: int  # when it last had all that there was
    log_start_offset: int  # where its log began then

class Partition(Log):
    """A handle to one partition: its log, and who may write to it. Every call releases the GIL while it touches
    files."""

    topic: str
    partition: int
    topic_id: bytes
    leader_epoch: int
    role: Role  # offline until somebody says otherwise
    followers: list[Follower]  # of a leader
    proven_ms: int  # of a leader: no other broker led at this time (monotonic) in a later epoch; -1: unknown
    leader_throttled: bool
    follower_throttled: bool
    def throttle(self, *, leader: bool, follower: bool) -> None:
        """Count what others fetch of it, and what is copied of it here, against the plane's limits of replication."""
    def append(
        self, records: Bytes, *, now_ms: int, leader_epoch: int = -1, internal: bool = False, acks: int = -2
    ) -> Appended:
        """Check, stamp and append exactly one batch from a client, as the leader; the high watermark follows at once
        where there are no followers.

        `leader_epoch` -1 means the current one. `internal` skips the checks meant for clients (control batches).
        `acks` of the request: -1 requires enough replicas in sync, 0 and 1 a lease that has not lapsed, -2 neither.
        A batch that follows one that was refused for a temporary reason is refused with the same error.
        Raises LogError: 2, 6, 10, 18, 19, 32, 43, 45, 47, 48, 56, 74, 75, 76, 87; OSError."""
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
        the new log end offset. They are committed up to the leader's high watermark; all of them without one. Nothing
        is appended where the log does not end at `log_end` (-1: wherever it ends): it was cut since they were asked
        for.

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
    def truncate(self, offset: int, *, leader_epoch: int = -1) -> None:
        """Cut the log's end back to `offset`. With a leader epoch only as a follower in it: whoever decided that a log
        is to be cut may come late. Raises LogError 1, 6, 74, 75."""
    def become_leader(
        self,
        leader_epoch: int,
        partition_epoch: int,
        *,
        followers: Sequence[int] = (),
        isr: Collection[int] | None = None,
        wait: bool = True,
    ) -> None:
        """Lead under this leader epoch, which begins at the log's end.

        followers: the brokers of the other replicas; isr: which of them the high watermark waits for (None: all). What
        is known of a follower is forgotten with the leader epoch that it was known in. Raises LogError 74 if ours is
        newer, 95 if it is the same and our partition epoch is newer; so do the three below. Without `wait` it raises
        BlockingIOError where an append is under way, which may be at the disk; nothing has changed then."""
    def become_follower(self, leader: int, leader_epoch: int, partition_epoch: int, *, wait: bool = True) -> None:
        """Follow this broker (-1: it is not known who). What is committed stays so. `wait` as above."""
    def become_offline(self, leader_epoch: int, partition_epoch: int, *, leader: int = -1) -> None:
        """Neither lead nor follow; clients that ask are told of this leader (-1: of none)."""
    def set_isr(
        self, isr: Collection[int], leader_epoch: int, partition_epoch: int, *, in_sync: int = -1
    ) -> None:
        """The maximal ISR of a leader is another one. `in_sync`: how many are in the one that the controller knows,
        ourselves among them; -1: all of these. Raises LogError 6 too, and 75 in a newer epoch than ours."""
    @property
    def min_isr(self) -> int:
        """min.insync.replicas of its topic; with fewer in sync the high watermark of a leader stays."""
    @min_isr.setter
    def min_isr(self, replicas: int) -> None: ...
    @property
    def under_min_isr(self) -> bool:
        """Are fewer replicas in sync than acks=all needs? Of all the replicas there are, where that is fewer."""
    def tell_all(self) -> None:
        """Wake every request that waits for this partition, so that it checks again."""
    def note_fetch(
        self, broker: int, offset: int, *, leader_epoch: int = -1, broker_epoch: int = -1, log_start: int = -1,
        session: int = 0, session_epoch: int = 0, now_ms: int,
    ) -> None:
        """A follower fetches from `offset`: all before it, it has. -1 where it names no epoch, or does not say where
        its log begins. session, session_epoch: its fetch session, and which request in it; 0: none. now_ms: monotonic.

        Raises LogError 1, 6, 74, 75 (the broker is no follower too), 77 (that of an earlier life)."""
