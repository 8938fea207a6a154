"""The wall: every call that Python may make into core, typed, with units.

Names are imported from `pybroker.core`. Offsets are record offsets, positions and sizes are bytes, times are
milliseconds since the epoch unless the name says otherwise. Codes in `LogError.code` are Kafka error codes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from pybroker.core.base.counters import BOUNDS_US as BOUNDS_US
from pybroker.core.base.counters import Histogram as Histogram
from pybroker.core.base.counters import Reactor as Reactor
from pybroker.core.base.counters import Traffic as Traffic
from pybroker.core.base.mapping import FileMap as FileMap
from pybroker.core.base.tls_socket import TlsSocket as TlsSocket
from pybroker.core.base.tls_socket import set_ciphersuites as set_ciphersuites
from pybroker.core.base.tls_socket import tls_available as tls_available
from pybroker.core.batch.block import Block as Block
from pybroker.core.batch.builder import BatchBuilder as BatchBuilder
from pybroker.core.batch.builder import SealedBatch as SealedBatch
from pybroker.core.batch.builder import build_batch as build_batch
from pybroker.core.broker import Broker as Broker
from pybroker.core.client.appender import NO_CHOICE as NO_CHOICE
from pybroker.core.client.appender import NO_MEMORY as NO_MEMORY
from pybroker.core.client.appender import NO_TOPIC as NO_TOPIC
from pybroker.core.client.appender import Appender as Appender
from pybroker.core.client.appender import OpenQueue as OpenQueue
from pybroker.core.client.producer_batch import Delivery as Delivery
from pybroker.core.client.producer_batch import PendingBatch as PendingBatch
from pybroker.core.client.producer_batch import RecordMetadata as RecordMetadata
from pybroker.core.client.producer_batch import log_callback as log_callback
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
from pybroker.core.fetcher import Fetcher as Fetcher
from pybroker.core.fetcher import FetcherEvent as FetcherEvent
from pybroker.core.log_dirs import LogDirs as LogDirs
from pybroker.core.log_handle import Log as Log
from pybroker.core.partition_handle import Appended as Appended
from pybroker.core.partition_handle import Follower as Follower
from pybroker.core.partition_handle import Partition as Partition
from pybroker.core.partition_handle import Read as Read
from pybroker.core.partition_handle import Role as Role
from pybroker.core.quota_bucket import QuotaBucket as QuotaBucket

Bytes = bytes | bytearray | memoryview

class LogError(Exception):
    """An operation on a log was refused or failed; `code` is the Kafka error code that a client gets for it."""

    code: int
    def __init__(self, code: int, message: str) -> None: ...

class MissingFiles(LogError):
    """A log does not begin or end where it did: files of it are missing, and it is not used without them."""

# -- batch: record batch v2, uncompressed, or not looked into ---------------------------------------------------------

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

def zstd_frames_are_strict(data: Bytes, made: int) -> bool:
    """True if data is whole zstd frames that every library reads, as far as their headers show, and whose contents have
    the size `made`, bytes."""

class Lz4Compressor:
    """Makes LZ4 frames of 64 KiB blocks that do not refer to each other, by the liblz4 of the `lz4` package or of the
    system; what seals a batch with it has the frame written straight into it, without the GIL.

    level: as liblz4 counts them, 0 its default. Raises ValueError where no library was found."""

    def __init__(self, level: int = 0) -> None: ...
    def __call__(self, plain: Bytes) -> bytes: ...

def undo(codec: int, data: Bytes, bytes_max: int, strict: bool = True) -> Block:
    """Decompress lz4 (3) or zstd (4) without the GIL. Raises LogError 2 for data that is cut, damaged or followed by
    something else, 10 for more than bytes_max, ValueError for zstd where no libzstd was found. Not `strict`, it passes
    by what follows, as Java's readers do."""

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
WITHHELD_MS_MIN: Final[int]
"""The names that `Broker.arm` takes."""

# -- slices, compaction, the data plane -------------------------------------------------------------------------------

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

Counted = tuple[int, bytes, QuotaBucket | None, QuotaBucket | None, QuotaBucket | None]
"""The number of quotas, a client id (null is empty, 256 bytes at most), and where it counts by them: bytes of Produce
requests, bytes of Fetch answers, nanoseconds of threads. None: nowhere."""
Letter = Literal["request", "gone", "closed", "grown", "fetcher", "joining"]

class Plane:
    """The native data plane: reactors on threads of their own execute Produce and Fetch; a mailbox goes to Python."""

    def __init__(
        self,
        broker: Broker,
        *,
        reactors: int = 1,
        fetchers: int = 0,
        frame_bytes_max: int = 100 << 20,
        fetch_bytes_max: int = 55 << 20,
        idle_ms: int = 600000,
        fetch_sessions: int = 1000,
        pool_bytes: int = 512 << 20,
        requests_max: int = 500,
        holder_ms: int = 10000,
        replica_listener: int = -1,
        rack: str | None = None,
        leader_throttle: QuotaBucket | None = None,
        follower_throttle: QuotaBucket | None = None,
    ) -> None:
        """`leader_throttle` and `follower_throttle`: where throttled replication counts (Partition.throttle), as leader
        and as follower; with too much of it no follower outside the ISR is given more, and nothing is copied that is
        behind its leader (KIP-73)."""
    def start(self) -> None: ...
    def resize(self, reactors: int, fetchers: int) -> None:
        """Have so many threads take the connections of clients that come from now on, and so many those to leaders; at
        most 1024 each. Connections stay with their threads.

        OSError or RuntimeError where a thread cannot be had; then as many take new ones as there are."""
    def step(self, reactor: int = 0, timeout_ms: int = 0) -> None:
        """One turn of one reactor by hand, for tests that decide who runs when. Not while start()ed."""
    def finish(self, stall_ms: int = 2000) -> None:
        """Answer what runs, park nothing, close each connection once it is owed nothing."""
    def stop(self) -> None: ...
    def divert(self, on: bool) -> None:
        """Hand Produce and Fetch to Python as everything else, parked fetches too, or execute them here again."""
    def close_longest_silent(self, count: int, *, spared: int = -1) -> int:
        """Close so many clients' connections, each the one that is silent for longest of the reactor that has most, and
        none of the listener `spared`; how many reactors were asked for, at most 1000."""
    def cut(self) -> None:
        """Close the connections that there are; their clients may come back."""
    def close_listener(self, listener: int, *, owed: bool) -> None:
        """Close the connections of a listener, whose number no other gets; `owed`: once they got what they are owed.

        ValueError for a number that is none from 0 to 62."""
    def publish(self, partition: Partition, *, native_append: bool, envelope: bool = False) -> int:
        """Let the reactors find a partition; the id that "grown" letters name it by.

        native_append: they may append to it batches whose records can be read; envelope: that is not asked of
        compressed batches."""
    def configure(self, partition: Partition, *, native_append: bool, envelope: bool = False) -> None: ...
    def set_nodes(self, nodes: Sequence[tuple[int, int, str, int, str | None]]) -> None:
        """Where the clients of each listener (see adopt) find each broker: (listener, id, host, port, rack). A
        refusal names the leader, where it is one of them."""
    def watch(self, partition: Partition, *, to_log_end: bool = False) -> None:
        """Ask for one "grown" letter at the next append; look once more after this call."""
    def watch_joining(self, partition: Partition) -> None:
        """Ask for one "joining" letter when a follower outside the ISR catches up; look once more after it."""
    def withdraw(self, partition: Partition) -> None: ...
    def adopt(
        self, fd: int, *, listener: int = 0, judged: bool = False, tls: TlsSocket | None = None, login_ends_ms: int = 0
    ) -> int:
        """Take over a connected non-blocking socket; the id that letters name it by. MemoryError: it is still yours.
        `tls`: what it has, after its handshake, which is the plane's from then on.

        judged: Produce and Fetch of its client are executed where replies have brought the rights for it.
        login_ends_ms: from then on, by time.monotonic(), Python gets all that its client asks; 0: never."""
    def fileno(self) -> int: ...
    def take(self) -> list[tuple[Letter, int, int, bytes | None]]:
        """The letters: (kind, id, token, frame); the frame is None if there is no memory for it."""
    def reply(
        self, token: int, parts: Sequence[Bytes | Slice] | None, *, close: bool = False,
        rights: Mapping[bytes, int] | None = None, rules: int = 0, login_ends_ms: int = -1,
        quotas: Counted | None = None, mute_ms: int = 0,
    ) -> None:
        """Answer a request, once: parts in order without the size; None for no answer. ValueError: it is answered.

        rights: {topic id: READ | WRITE} that the client has from now on, as long as the rules of this number hold.
        login_ends_ms: as of adopt(), from now on; -1: as it was.
        quotas: where it counts from now on, as long as those of this number hold. mute_ms: how long nothing more of the
        connection is read."""
    def set_quotas(self, number: int) -> None:
        """The quotas that have this number hold now, 0: there are none. Who is muted goes on."""
    def set_rules(self, rules: int) -> None:
        """The rules that have this number hold now: rights that follow from others are forgotten."""
    held_bytes: int  # by requests that are received and not yet answered
    def stats(self) -> list[Reactor]:
        """What each reactor counted since its start; histograms say from when a request was read."""

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
        tls: Sequence[TlsSocket] = (),
    ) -> None:
        """`tls`: what the sockets have, after their handshakes, if any: the generator's from then on."""
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

def mark_damaged(partition: Partition, base_offset: int, position: int, end: int, first: int, next: int) -> bool:
    """Have reads pass a bad spot by that an earlier life of the broker found; False if the segment is gone. OSError."""

class SegmentScan:
    """A check of a sealed segment's file: every batch's header, CRC and offset. What is not in the page cache does not
    stay there.

    partition: that it is a segment of, and that passes by what is found, what was cut off the file too; None for a file
    alone. strict: its offsets
    have no gaps, for it was never compacted. next_base: where the next segment that holds something begins, -1 if none
    does; no batch leaps so far. log_end: of the last segment, an offset that its log had reached before. position:
    where the check begins, at offset `reached`. OSError."""

    path: str
    base_offset: int
    position: int
    def __init__(
        self,
        path: str,
        *,
        partition: Partition | None = None,
        strict: bool = False,
        next_base: int = -1,
        log_end: int = -1,
        position: int = 0,
        reached: int = -1,
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
