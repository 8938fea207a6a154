"""The wall: every call that Python may make into core, typed, with units.

Names are imported from `pybroker.core`. Offsets are record offsets, positions and sizes are bytes, times are
milliseconds since the epoch unless the name says otherwise. Codes in `LogError.code` are Kafka error codes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypedDict

from pybroker.core.batch.block import Block as Block
from pybroker.core.batch.builder import BatchBuilder as BatchBuilder
from pybroker.core.batch.builder import SealedBatch as SealedBatch
from pybroker.core.batch.builder import build_batch as build_batch
from pybroker.core.client.appender import NO_CHOICE as NO_CHOICE
from pybroker.core.client.appender import NO_MEMORY as NO_MEMORY
from pybroker.core.client.appender import NO_TOPIC as NO_TOPIC
from pybroker.core.client.appender import Appender as Appender
from pybroker.core.client.appender import OpenQueue as OpenQueue
from pybroker.core.client.producer_batch import Delivery as Delivery
from pybroker.core.client.producer_batch import PendingBatch as PendingBatch
from pybroker.core.client.producer_batch import RecordMetadata as RecordMetadata
from pybroker.core.columns.columns import COLUMNS as COLUMNS
from pybroker.core.columns.columns import Binary as Binary
from pybroker.core.columns.columns import ColumnBatch as ColumnBatch
from pybroker.core.columns.columns import Columns as Columns
from pybroker.core.columns.columns import Headers as Headers
from pybroker.core.columns.encode import Encoder as Encoder
from pybroker.core.columns.encode import partitions_of as partitions_of
from pybroker.core.columns.objects import Record as Record
from pybroker.core.columns.objects import read_records as read_records
from pybroker.core.columns.partition_batches import PartitionBatches as PartitionBatches
from pybroker.core.columns.source import ByteColumn as ByteColumn
from pybroker.core.columns.source import HeaderColumn as HeaderColumn

Bytes = bytes | bytearray | memoryview

class LogError(Exception):
    """An operation on a log was refused or failed; `code` is the Kafka error code that a client gets for it."""

    code: int
    def __init__(self, code: int, message: str) -> None: ...

class MissingFiles(LogError):
    """A log does not begin or end where it did: files of it are missing, and it is not used without them."""

# -- batch: record batch v2, uncompressed or opaque ---------------------------------------------------------------

def crc32c(data: Bytes, initial: int = 0) -> int:
    """CRC-32C (Castagnoli) of data, continuing from `initial`; hardware where the processor has it (RFC 3720)."""

class BatchHeader:
    """The 61-byte header of a record batch, magic 2 (KIP-98)."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    @property
    def size(self) -> int: ...  # 12 + batch_length
    @property
    def last_offset(self) -> int: ...
    @property
    def codec(self) -> int: ...  # 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def is_log_append_time(self) -> bool: ...

def check_batch(data: Bytes, position: int = 0) -> BatchHeader:
    """Parse and check the batch at `position`: length, magic, CRC, counts. Raises LogError (2, 43, 87)."""

def iter_batches(data: Bytes, *, check_crc: bool = True) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch in data; a partial last batch ends the walk. Raises LogError."""

Walked = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""(offset, timestamp_ms, key, value, headers)"""

def rebuild_batch(batch: Bytes, payload: Bytes, attributes: int, max_timestamp: int = -1) -> bytes:
    """The batch with its header kept and its records section replaced by payload, length and CRC made right."""

def walk_records(payload: Bytes, header: BatchHeader) -> Iterator[Walked]:
    """The records of an uncompressed payload (bytes after the header). Raises LogError(87) where they do not parse."""

def check_records(
    payload: Bytes, header: BatchHeader, *, need_keys: bool, timestamp_min: int, timestamp_max: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """Walk without building objects: how many records are at fault, and the first 10,000 of them as
    (index, reason, timestamp), reason 1 malformed, 2 key missing, 3 timestamp out of [min, max]. A malformed one is the
    only one that is told; its index is header.count where bytes follow the last record."""

# -- vfs: file calls with named failpoints ---------------------------------------------------------------------------

def write_atomic(path: str, data: bytes) -> None:
    """Write path.tmp, fsync, rename over path, fsync the directory; OSError, and path as it was, on failure."""

FAILPOINTS: Final[tuple[str, ...]]
"""The names that `Broker.arm` takes."""

# -- the broker context and its partitions ---------------------------------------------------------------------------

class Slice:
    """A range of a log file, pinned: the bytes stay readable until close() even if the segment is deleted."""

    def __len__(self) -> int: ...
    def send(self, fd: int, start: int = 0) -> int:
        """Send from byte `start` to a non-blocking socket; bytes sent, 0 if it would block. Raises OSError;
        LogError(56) if the log was truncated meanwhile, or its file ends before: then the connection must be closed."""
    def tobytes(self) -> bytes: ...
    def warm(self) -> None:
        """Bring the bytes into the page cache, so that send() need not wait for the disk. OSError, LogError(56)."""
    def close(self) -> None: ...

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

class Partition:
    """A handle to one partition's log and watermarks. Every call releases the GIL while it touches files."""

    topic: str
    partition: int
    topic_id: bytes
    directory: str
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    recovery_point: int
    durable_offset: int  # every record below is on disk, its indexes perhaps not
    size: int  # bytes in all segments
    segment_count: int
    highest_producer_id: int  # -1 if none was ever seen
    traffic: Traffic  # since it was opened
    offline: bool
    slow_reads: bool  # a read waited long for the disk, not long ago: no thread that serves others is to read from it
    recovery: str  # one line on what start-up repaired; empty if nothing was amiss

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
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset): the largest known epoch <= epoch and where it ends; (-1, -1) if unknown (KIP-101)."""
    def become_leader(self, leader_epoch: int, partition_epoch: int) -> None: ...
    def set_log_start(self, offset: int) -> int:
        """DeleteRecords: raise the log start (-1: to the high watermark). Returns the new low watermark. LogError 1."""
    def truncate(self, offset: int) -> None: ...
    def configure(self, config: Mapping[str, int]) -> None: ...
    def enforce_retention(self, now_ms: int) -> int:
        """Roll by age and delete whole segments by retention.ms, retention.bytes and log start; segments deleted."""
    def expire_producers(self, now_ms: int) -> int: ...
    def producers(self) -> list[tuple[int, int, int, int, int]]:
        """(producer_id, epoch, last_sequence, last_timestamp_ms, current_txn_first_offset) of each active producer."""
    def epochs(self) -> list[tuple[int, int]]: ...
    def epoch_at(self, offset: int) -> int: ...
    def segments(self) -> list[tuple[int, int, int]]:
        """(base offset, bytes, largest timestamp) of each segment, oldest first."""
    def roll(self) -> None: ...
    def flush(self) -> int:
        """fdatasync what is not flushed, and the indexes; the new recovery point. LogError 56."""
    def write_checkpoints(self) -> None:
        """Make leader-epoch-checkpoint durable if it changed. Call before the recovery point is recorded."""

class Broker:
    """One broker's context: its partitions, and the flusher of each log dir. No state is shared between two of them."""

    def __init__(
        self, *, write_behind_bytes: int = 8 << 20, flush_idle_ms: int = 200, open_files_max: int = 0
    ) -> None:
        """open_files_max: descriptors that segments have at most, 0 for no limit. Where few are left, segments that
        nobody used for a while are closed, active ones too; who needs one again opens it, and waits for a descriptor,
        but not on a reactor. Rolls and starts may go beyond it for a moment."""
    @property
    def open_files(self) -> int:
        """Descriptors that segments have now."""
    @property
    def open_files_max(self) -> int:
        """What __init__ was given."""
    def open(
        self,
        log_dir: str,
        topic: str,
        partition: int,
        *,
        topic_id: bytes,
        config: Mapping[str, int],
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = -1,
        clean: bool = False,
        epoch_max: int = -1,
        compacted: bool = False,
        written: int = 0,
        given_up: bool = False,
    ) -> Partition:
        """Open or create log_dir/topic-partition; recovers what lies past the recovery point unless `clean`.

        written: records up to here were in files that cannot be gone: a log that ends before, without a tail that was
        cut, lost files. given_up: what is missing at its start or end does not come back, use what is there.
        epoch_max: no batch can carry a larger leader epoch (-1: unknown); one that does is cut off with its tail.
        compacted: gaps between offsets are no damage, as they are none where cleanup.policy has compact.

        config: Kafka topic config names to integers (segment.bytes, segment.ms, segment.jitter.ms, segment.index.bytes,
        index.interval.bytes, retention.ms, retention.bytes, max.message.bytes, message.timestamp.type (0 CreateTime,
        1 LogAppendTime), file.delete.delay.ms, producer.id.expiration.ms, flush.messages, cleanup.policy (1 delete | 2
        compact)).
        Raises LogError 56 (a segment missing in the middle), 103 (partition.metadata has another id), MissingFiles (56;
        one missing at the start or end), OSError."""
    def get(self, topic: str, partition: int) -> Partition | None: ...
    def partitions(self) -> list[Partition]: ...
    def delete(self, partition: Partition) -> None:
        """Unpublish, wait for readers to leave, rename the directory to -delete, unlink it in the background."""
    def log_dir_error(self, log_dir: str) -> int:
        """The errno for which a log dir is offline: nothing is written there any more; 0 while it is in use."""
    def fail_log_dir(self, log_dir: str) -> None:
        """Take a log dir offline."""
    def read_errors(self, log_dir: str) -> int:
        """How many reads of a log dir, and sends of what lies in it, the disk failed since the broker was made."""
    def unread(self, log_dir: str) -> list[tuple[Partition, int]]:
        """(partition, errno) of each whose reads began to fail since the last call. The plane leaves their fetches to
        Python, which reads before it answers."""
    def lost_file(self, log_dir: str) -> Partition | None:
        """A partition of a log dir that grew since the last call, and whose active file was removed beneath it: the log
        dir is offline then. None if there is none."""
    def take_suspects(self) -> list[tuple[Partition, int]]:
        """Where reads met what is no batch since the last call: a partition, and the base offset of the segment. A scan
        of it (SegmentScan) lets reads pass by what is bad."""
    def write_atomic(self, path: str, data: bytes) -> None:
        """Like the function, passing the failpoints checkpoint.write, checkpoint.sync and checkpoint.rename. Where the
        disk failed, the log dir that the file lies in is offline."""
    def arm(
        self,
        point: str,
        action: Literal["errno", "short", "kill", "sleep"],
        value: int = 0,
        *,
        after: int = 0,
        times: int = 1,
        under: str = "",
    ) -> None:
        """Make a failpoint fire at its next pass but `after`, `times` times: fail with errno `value`, write `value`
        bytes and then fail with EIO (short), write `value` bytes and die by SIGKILL (kill), or sleep `value` ms.
        Only at paths that have `under` in them, where it is given."""
    @property
    def sleeping(self) -> int:
        """File calls that sleep in a failpoint just now."""
    def disarm(self) -> None: ...
    def sync_times(self) -> Histogram:
        """How long each flush of a file took."""
    def close_idle_files(self) -> int:
        """Close the files of sealed segments that nobody read from since the last call; how many were. Slices that are
        held stay readable, and the next read opens a segment again."""
    def stop_cleaning(self) -> None:
        """Rounds of compaction end where they are (`clean` gives None), and no new one begins."""
    def close(self, *, clean: bool = True) -> None:
        """Stop the flusher; clean: flush every partition and write its snapshot and indexes first."""

class Cleaned:
    """What a round of compaction did."""

    first_dirty: int  # records below it were compacted: where the next round begins to learn keys
    bytes_before: int  # of the segments that were read to be written anew
    bytes_after: int  # of what came out of them
    bytes_moved: int  # read and written
    records_dropped: int

def clean(
    partition: Partition,
    *,
    first_dirty: int,
    end: int,
    now_ms: int,
    delete_retention_ms: int,
    map_bytes: int,
    decompress: Callable[[int, bytes], bytes],
    compress: Callable[[int, bytes], bytes],
    bytes_per_s: int = 0,
) -> Cleaned | None:
    """One round of compaction on the caller's thread: of each key that has a record in [first_dirty, end) the last one
    stays, tombstones until delete_retention_ms after the round that first kept them; offsets and order do not change.

    It ends early where map_bytes hold no more keys (24 bytes a slot, three quarters of them used), never past what is
    sealed, flushed and stable. decompress and compress take (codec, data). None
    if it did not come to its end because segments went meanwhile or the broker stops; what is done by then is sound.
    Raises LogError 2 where a batch is damaged, 56, OSError (EAGAIN: a round runs already)."""

class Plane:
    """The native data plane: reactors on threads of their own execute Produce and Fetch; a mailbox goes to Python."""

    def __init__(
        self,
        broker: Broker,
        *,
        reactors: int = 1,
        frame_bytes_max: int = 100 << 20,
        fetch_bytes_max: int = 55 << 20,
        idle_ms: int = 600000,
        fetch_sessions: int = 1000,
        pool_bytes: int = 512 << 20,
        requests_max: int = 500,
        holder_ms: int = 10000,
    ) -> None: ...
    def start(self) -> None: ...
    def step(self, reactor: int = 0, timeout_ms: int = 0) -> None:
        """One turn of one reactor by hand, for tests that decide who runs when. Not while start()ed."""
    def finish(self) -> None:
        """Answer what runs, park nothing, close each connection once it is owed nothing."""
    def stop(self) -> None: ...
    def divert(self, on: bool) -> None:
        """Hand Produce and Fetch to Python as everything else, parked fetches too, or execute them here again."""
    def cut(self) -> None:
        """Close the connections that there are; their clients may come back."""
    def publish(self, partition: Partition, *, opaque: bool, envelope: bool = False) -> int:
        """Let the reactors find a partition; the id that "grown" letters name it by.

        opaque: they may append to it batches whose records can be read; envelope: not asked of compressed batches."""
    def configure(self, partition: Partition, *, opaque: bool, envelope: bool = False) -> None: ...
    def watch(self, partition: Partition) -> None:
        """Ask for one "grown" letter at the next append; look once more after this call."""
    def withdraw(self, partition: Partition) -> None: ...
    def adopt(self, fd: int) -> int:
        """Take over a connected non-blocking socket; the id that letters name it by. MemoryError: it is still yours."""
    def fileno(self) -> int: ...
    def take(self) -> list[tuple[Literal["request", "gone", "closed", "grown"], int, int, bytes | None]]:
        """The letters: (kind, id, token, frame); the frame is None if there is no memory for it."""
    def reply(self, token: int, parts: Sequence[Bytes | Slice] | None, *, close: bool = False) -> None:
        """Answer a request, once: parts in order without the size; None for no answer. ValueError: it is answered."""
    held_bytes: int  # by requests that are received and not yet answered
    def stats(self) -> list[Reactor]:
        """What each reactor counted since its start; histograms say from when a request was read."""

# -- counters: read at any time, by any thread ------------------------------------------------------------------------

BOUNDS_US: Final[tuple[int, ...]]
"""Where each bucket of a histogram ends, exclusive, in microseconds; one more bucket has all that is larger."""

class Histogram(TypedDict):
    sum_us: int
    counts: list[int]

class Api(TypedDict):
    requests: int  # executed natively
    declined: int  # left to Python
    errors: int  # partitions whose answer told one
    bytes_in: int  # of requests executed natively
    bytes_out: int  # of their answers
    times: Histogram  # from the turn that read a request to the end of the one that answered it

class Reactor(TypedDict):
    connections: int
    parked: int  # fetches that wait now
    busy_ns: int
    bytes_in: int  # of all connections, whoever executes
    bytes_out: int
    turns: Histogram
    Produce: Api
    Fetch: Api
    others: int  # requests of other APIs, all Python's

class Traffic(TypedDict):
    batches_in: int  # appended by clients and by the broker itself
    records_in: int
    bytes_in: int  # as stored
    bytes_out: int  # of records, sent to clients

# -- load ------------------------------------------------------------------------------------------------------------

class LoadGenerator:
    """Connections that send a ready frame and count the answers: a generator without the GIL, for benchmarks.

    The sockets stay the caller's, and outlive it. A connection's frame (with its size) goes to each of its partitions
    in turn, whose index is written at `index_at`; `error_at` is where an answer, behind its size, has its error code.
    For Fetch (depth 1, one partition a connection) `records_at` is where the length of an answer's records stands, and
    `offset_at` where the frame has the offset that it asks for. ValueError for what cannot be."""

    def __init__(
        self,
        fds: Sequence[int],
        frames: Sequence[bytes],
        partitions: Sequence[Sequence[int]],
        *,
        depth: int,
        index_at: int,
        error_at: int,
        batch_records: int = 0,
        batch_bytes: int = 0,
        records_at: int = 0,
        offset_at: int = 0,
    ) -> None: ...
    def run(self, seconds: float, *, rate: float = 0, bytes_max: int = 0) -> None:
        """Send for so long, or until so many bytes of batches were sent (0: no bound), then wait for what is owed.

        rate: requests a second over all connections, each timed from when it was due (open loop); 0: each connection
        keeps `depth` requests on their way (closed loop)."""
    def stop(self) -> None:
        """End run() early, from another thread."""
    @property
    def tally(self) -> dict[str, int]:
        """requests, records, bytes (of batches), errors, last_error (-1: a connection was lost, -2: no answer came),
        elapsed_ns; also while it runs."""
    def percentile_ns(self, percent: float) -> int:
        """The latency that so many percent of the requests stayed within, at most 1.6 % too large; 0 without any."""

# -- damage ----------------------------------------------------------------------------------------------------------

def bad_spots(partition: Partition) -> list[tuple[int, int, int, int, int]]:
    """(segment's base offset, position, end, first offset, next offset) of each range of a segment's file that is known
    to hold no sound batch, ascending: reads of the offsets in it get CORRUPT_MESSAGE."""

def mark_damaged(
    partition: Partition, base_offset: int, position: int, end: int, first: int, next: int
) -> bool:
    """Have reads pass a bad spot by that an earlier life of the broker found; False if the segment is gone. OSError."""

class SegmentScan:
    """A check of a sealed segment's file: every batch's header, CRC and offset. What is not in the page cache does not
    stay there.

    partition: that it is a segment of, and that passes by what is found, what was cut off the file too; None for a file
    alone. strict: its offsets
    have no gaps, for it was never compacted. next_base: where the next segment begins, -1 if none does. OSError."""

    path: str
    base_offset: int
    position: int
    def __init__(
        self, path: str, *, partition: Partition | None = None, strict: bool = False, next_base: int = -1
    ) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def end_offset(self) -> int:
        """The offset that follows what was checked."""
    @property
    def done(self) -> bool: ...
    def step(self, most: int = (1 << 63) - 1) -> list[tuple[int, int, int, int]]:
        """Check about `most` bytes more; (position, end, first offset, next offset) of each bad spot in them, none
        where compaction put another file in the segment's place meanwhile. Waits for the disk. OSError."""

# -- dump -----------------------------------------------------------------------------------------------------------

def read_index(path: str) -> list[tuple[int, int]]:
    """(absolute offset, position) of each entry of an .index file; the base offset comes from its name."""

def read_timeindex(path: str) -> list[tuple[int, int]]:
    """(timestamp_ms, absolute offset) of each entry of a .timeindex file."""

def read_snapshot(path: str) -> list[tuple[int, int, int, int, int, int, int, int]]:
    """(producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp_ms, coordinator_epoch,
    current_txn_first_offset) of each entry of a producer .snapshot file. LogError 2 if its CRC is wrong."""
