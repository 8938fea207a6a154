"""The Python API of core: every call, typed, with units.

Import names from `pybroker.core`. Offsets are record offsets, positions and sizes are bytes, and times are milliseconds
since the epoch unless the name says otherwise. `LogError.code` is a Kafka error code; `LogError(NAME)` names it here.
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
from pybroker.core.client.appender import NO_CHOICE as NO_CHOICE
from pybroker.core.client.appender import NO_MEMORY as NO_MEMORY
from pybroker.core.client.appender import NO_TOPIC as NO_TOPIC
from pybroker.core.client.appender import Appender as Appender
from pybroker.core.client.appender import OpenQueue as OpenQueue
from pybroker.core.client.producer_batch import Delivery as Delivery
from pybroker.core.client.producer_batch import PendingBatch as PendingBatch
from pybroker.core.client.producer_batch import RecordMetadata as RecordMetadata
from pybroker.core.client.producer_batch import log_callback as log_callback
from pybroker.core.columns.avro_columns import AvroBatch as AvroBatch
from pybroker.core.columns.avro_columns import AvroDecoder as AvroDecoder
from pybroker.core.columns.columns import COLUMNS as COLUMNS
from pybroker.core.columns.columns import Binary as Binary
from pybroker.core.columns.columns import ColumnBatch as ColumnBatch
from pybroker.core.columns.columns import Columns as Columns
from pybroker.core.columns.columns import Headers as Headers
from pybroker.core.columns.encode import Encoder as Encoder
from pybroker.core.columns.encode import partitions_of as partitions_of
from pybroker.core.columns.json_columns import JsonBatch as JsonBatch
from pybroker.core.columns.json_columns import JsonDecoder as JsonDecoder
from pybroker.core.columns.objects import Record as Record
from pybroker.core.columns.objects import RecordSteps as RecordSteps
from pybroker.core.columns.objects import read_records as read_records
from pybroker.core.columns.partition_batches import PartitionBatches as PartitionBatches
from pybroker.core.columns.source import ByteColumn as ByteColumn
from pybroker.core.columns.source import HeaderColumn as HeaderColumn
from pybroker.core.columns.value_columns import ValueColumn as ValueColumn
from pybroker.core.leader_connection import FetcherEvent as FetcherEvent
from pybroker.core.leader_connection import LeaderConnection as LeaderConnection
from pybroker.core.log_dirs import LogDirs as LogDirs
from pybroker.core.log_handle import Log as Log
from pybroker.core.log_manager import LogManager as LogManager
from pybroker.core.moving import FutureLog as FutureLog
from pybroker.core.partition_handle import Appended as Appended
from pybroker.core.partition_handle import Follower as Follower
from pybroker.core.partition_handle import Partition as Partition
from pybroker.core.partition_handle import Read as Read
from pybroker.core.partition_handle import Role as Role
from pybroker.core.quota_bucket import QuotaBucket as QuotaBucket
from pybroker.core.request_samples import RequestSample as RequestSample
from pybroker.core.request_samples import RequestSamples as RequestSamples

Bytes = bytes | bytearray | memoryview

class LogError(Exception):
    """An operation on a log was refused or failed; `code` is the Kafka error code that a client gets for it."""

    code: int
    def __init__(self, code: int, message: str) -> None: ...

class MissingFiles(LogError):
    """A log does not begin or end at the expected offset: files are missing, and it is not used without them."""

# -- batch: record batch v2, uncompressed or opaque -------------------------------------------------------------------

def crc32c(data: Bytes, initial: int = 0) -> int:
    """Return the CRC-32C (Castagnoli, RFC 3720) of data, continuing from `initial`; in hardware if the processor has
    it."""

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
    """Parse and check the batch at `position`: length, magic, CRC, counts. Raises LogError(CORRUPT_MESSAGE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD)."""

def iter_batches(data: Bytes, *, check_crc: bool = True) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch in data; a partial last batch ends the walk. Raises LogError."""

Walked = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""(offset, timestamp_ms, key, value, headers)"""

def rebuild_batch(batch: Bytes, payload: Bytes, attributes: int, max_timestamp: int = -1) -> bytes:
    """The batch with its header kept, its records section replaced by payload, and length and CRC updated."""

def zstd_frames_are_strict(data: Bytes, made: int) -> bool:
    """True if data is whole zstd frames that every library can read, judging by their headers, and that decompress to
    `made` bytes."""

class Lz4Compressor:
    """Makes LZ4 frames of independent 64 KiB blocks, with the liblz4 of the `lz4` package or of the system. A batch
    builder has it write the frame straight into the batch, without the GIL.

    level: liblz4's compression level, 0 its default. Raises ValueError if no library was found."""

    def __init__(self, level: int = 0) -> None: ...
    def __call__(self, plain: Bytes) -> bytes: ...

def undo(codec: int, data: Bytes, bytes_max: int, strict: bool = True) -> Block:
    """Decompress lz4 (3) or zstd (4) without the GIL. Raises LogError(CORRUPT_MESSAGE) for data that is truncated,
    damaged or followed by other bytes, LogError(MESSAGE_TOO_LARGE) beyond bytes_max, ValueError for zstd without a
    libzstd. If not `strict`, bytes that follow are ignored, as Java's readers do."""

def walk_records(payload: Bytes, header: BatchHeader) -> Iterator[Walked]:
    """The records of an uncompressed payload (bytes after the header). Raises LogError(INVALID_RECORD) if they do not
    parse."""

def check_records(
    payload: Bytes, header: BatchHeader, *, need_keys: bool, timestamp_min: int, timestamp_max: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """Check records without building objects: how many are invalid, and the first 10,000 of them as (index, reason,
    timestamp). Reason: 1 malformed, 2 key missing, 3 timestamp out of [min, max]. A malformed record is the only one
    reported; its index is header.count if bytes follow the last record."""

# -- vfs: file calls with named failpoints ---------------------------------------------------------------------------

def write_atomic(path: str, data: bytes) -> None:
    """Write path.tmp, fsync, rename over path, fsync the directory; on failure OSError, and path is as it was."""

FAILPOINTS: Final[tuple[str, ...]]
"""The names that `LogManager.arm` takes."""
WITHHELD_MS_MIN: Final[int]
"""The shortest wait, in ms, before a fetch that a quota or throttle held back is tried again."""

# -- slices, compaction, the data plane -------------------------------------------------------------------------------

class Slice:
    """A range of a log file, held open: the bytes stay readable until close() even if the segment is deleted."""

    def __len__(self) -> int: ...
    def send(self, fd: int, start: int = 0) -> int:
        """Send from byte `start` to a non-blocking socket; the bytes sent, 0 if it would block. Raises OSError. Raises
        LogError(KAFKA_STORAGE_ERROR) if the log was truncated meanwhile, or the file is too short: then close the
        connection."""
    def tobytes(self) -> bytes: ...
    def warm(self) -> None:
        """Bring the bytes into the page cache, so that send() need not wait for the disk. OSError,
        LogError(KAFKA_STORAGE_ERROR)."""
    def close(self) -> None: ...

class Cleaned:
    """The result of a round of compaction."""

    first_dirty: int  # records below it were compacted: the next round starts to read keys here
    bytes_before: int  # of the segments that were rewritten
    bytes_after: int  # of the segments that replaced them
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
    """Run one round of compaction on the caller's thread. Of each key with a record in [first_dirty, end) the last
    record is retained, and tombstones until delete_retention_ms after the round that first retained them; offsets and
    order do not change.

    The round covers fewer records if map_bytes hold no more keys (24 bytes a slot, three quarters of them used), and
    only records that are sealed, flushed and stable. decompress and compress take (codec, data). None if it was
    aborted, because segments were removed meanwhile or the broker stops; segments replaced by then stay valid. Raises
    LogError(CORRUPT_MESSAGE) for a damaged batch, LogError(KAFKA_STORAGE_ERROR), OSError (EAGAIN: a round is running
    already)."""

Counted = tuple[int, bytes, QuotaBucket | None, QuotaBucket | None, QuotaBucket | None]
"""The quotas of a client: the number of the quota table, the client id (null is empty; at most 256 bytes), and the
buckets of its Produce request bytes, Fetch response bytes and thread nanoseconds. None: not limited."""
Letter = Literal["request", "gone", "closed", "grown", "fetcher", "joining"]

class Plane:
    """The native data plane: reactors on their own threads execute Produce and Fetch; a mailbox hands the rest to
    Python."""

    def __init__(
        self,
        broker: LogManager,
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
        """`leader_throttle`, `follower_throttle`: the buckets of throttled replication (Partition.throttle), as leader
        and as follower. Above the limit, followers outside the ISR are sent no more, and partitions behind their leader
        are not copied (KIP-73)."""
    def start(self) -> None: ...
    def resize(self, reactors: int, fetchers: int) -> None:
        """Set how many threads take new connections of clients, and how many take those to leaders; at most 1024 each.
        Existing connections stay with their threads.

        OSError or RuntimeError if a thread cannot be started; new connections then go to the threads there are."""
    def step(self, reactor: int = 0, timeout_ms: int = 0) -> None:
        """Run one turn of one reactor by hand, for tests that control the order of threads. Not after start()."""
    def finish(self, stall_ms: int = 2000) -> None:
        """Answer running requests, park no fetch, and close each connection once its responses are sent."""
    def stop(self) -> None: ...
    def divert(self, on: bool) -> None:
        """Hand Produce and Fetch to Python like all other requests, parked fetches too; or execute them here again."""
    def close_longest_silent(self, count: int, *, spared: int = -1) -> int:
        """Close `count` client connections, at most 1000, each time the longest idle one of the reactor with most
        connections; none of the listener `spared`. Return how many the reactors were asked to close."""
    def cut(self) -> None:
        """Close all connections of now; clients may connect again."""
    def close_listener(self, listener: int, *, owed: bool) -> None:
        """Close the connections of a listener, whose number must not be used again; `owed`: only after their responses
        are sent.

        ValueError for a number that is not from 0 to 62."""
    def publish(self, partition: Partition, *, native_append: bool, envelope: bool = False) -> int:
        """Make a partition visible to the reactors; the id that names it in "grown" letters.

        native_append: the reactors may append to it batches whose records can be read; envelope: the records of
        compressed batches are not checked."""
    def configure(self, partition: Partition, *, native_append: bool, envelope: bool = False) -> None: ...
    def set_nodes(self, nodes: Sequence[tuple[int, int, str, int, str | None]]) -> None:
        """Set the address of each broker for the clients of each listener (see adopt): (listener, id, host, port,
        rack). NOT_LEADER_OR_FOLLOWER responses name the leader if it is in the list."""
    def watch(self, partition: Partition, *, to_log_end: bool = False) -> None:
        """Ask for one "grown" letter at the next append; check the partition again after this call."""
    def watch_joining(self, partition: Partition) -> None:
        """Ask for one "joining" letter when a follower outside the ISR catches up; check the partition again after this
        call."""
    def withdraw(self, partition: Partition) -> None: ...
    def adopt(
        self, fd: int, *, listener: int = 0, judged: bool = False, tls: TlsSocket | None = None, login_ends_ms: int = 0
    ) -> int:
        """Take over a connected non-blocking socket; the id that names it in letters. After MemoryError the socket is
        still the caller's. `tls`: the socket's TLS after its handshake; the plane takes it over, too.

        judged: Produce and Fetch are executed only where replies have granted the rights for it. login_ends_ms: from
        this time.monotonic() on, Python gets all requests of the client; 0: never."""
    def fileno(self) -> int: ...
    def take(self) -> list[tuple[Letter, int, int, bytes | None]]:
        """The letters: (kind, id, token, frame); the frame is None if there was no memory for it."""
    def reply(
        self, token: int, parts: Sequence[Bytes | Slice] | None, *, close: bool = False,
        rights: Mapping[bytes, int] | None = None, rules: int = 0, login_ends_ms: int = -1,
        quotas: Counted | None = None, mute_ms: int = 0,
    ) -> None:
        """Answer a request, once: parts in order without the size; None for no response. ValueError: already answered.

        rights: {topic id: READ | WRITE} that the client has from now on, while the rules of this number are in force.
        login_ends_ms: as for adopt(); -1: unchanged. quotas: the client's buckets from now on, while the quotas of this
        number are in force. mute_ms: for how long nothing more is read from the connection."""
    def set_quotas(self, number: int) -> None:
        """Put the quotas of this number in force; 0: there are none. Muted connections are served again."""
    def set_rules(self, rules: int) -> None:
        """Put the rules of this number in force: rights granted under other rules are dropped."""
    held_bytes: int  # by requests that are received, but not answered yet
    def stats(self) -> list[Reactor]:
        """The counters of each reactor since its start; the times count from when a request was read."""
    def begin(self, token: int) -> None:
        """Record that Python begins to execute a request, on the event loop's thread."""
    queued_ns: int  # how long the request of the last begin() had waited
    def queue_times(self) -> Histogram:
        """The times that requests waited for their execution in Python."""

# -- load ------------------------------------------------------------------------------------------------------------

class LoadGenerator:
    """Connections that send a prepared frame and count the responses: a load generator without the GIL, for benchmarks.

    The caller keeps the sockets, and closes them after the generator. A connection's frame (with its size) is sent for
    each of its partitions in turn: the partition's index is written at `index_at`; `error_at` is where a response,
    after its size, has the error code. For Fetch (depth 1, one partition a connection) `records_at` is where a response
    has the length of its records, and `offset_at` where the frame has the fetch offset. ValueError for impossible
    arguments."""

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
        """`tls`: the TLS of the sockets after their handshakes, if any; the generator takes it over."""
    def run(self, seconds: float, *, rate: float = 0, bytes_max: int = 0) -> None:
        """Send for so many seconds, or until `bytes_max` bytes of batches were sent (0: no limit), then wait for the
        outstanding responses.

        rate: requests a second over all connections, each timed from when it was due (open loop); 0: each connection
        keeps `depth` requests in flight (closed loop)."""
    def stop(self) -> None:
        """End run() early, from another thread."""
    @property
    def tally(self) -> dict[str, int]:
        """requests, records, bytes (of batches), errors, last_error (-1: a connection was lost, -2: no response came),
        elapsed_ns; may be read during run()."""
    def percentile_ns(self, percent: float) -> int:
        """The latency percentile, at most 1.6 % too large; 0 without requests."""

# -- damage ----------------------------------------------------------------------------------------------------------

def bad_spots(partition: Partition) -> list[tuple[int, int, int, int, int]]:
    """(base offset of the segment, position, end, first offset, next offset) of each known damaged range of the log's
    files, ascending: reads of its offsets get CORRUPT_MESSAGE."""

def mark_damaged(partition: Partition, base_offset: int, position: int, end: int, first: int, next: int) -> bool:
    """Make reads skip a damaged range that was found before a restart of the broker; False if the segment is gone.
    OSError."""

class SegmentScan:
    """A check of a sealed segment's file: every batch's header, CRC and offset. Pages that were not in the page cache
    are dropped from it again.

    partition: the segment's partition, whose reads then skip damaged ranges and what was cut off the file; None for a
    file alone. strict: its offsets have no gaps, as it was never compacted. next_base: the base offset of the next
    segment with records, -1 if there is none; no batch reaches it. log_end: for the last segment, an offset that the
    log had reached before. position: where the check begins, at offset `reached`. OSError."""

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
        """The offset after the records checked so far."""
    @property
    def done(self) -> bool: ...
    def step(self, most: int = (1 << 63) - 1) -> list[tuple[int, int, int, int]]:
        """Check about `most` bytes more; (position, end, first offset, next offset) of each damaged range in them, none
        if compaction replaced the segment meanwhile. Waits for the disk. OSError."""

# -- dump -----------------------------------------------------------------------------------------------------------

def read_index(path: str) -> list[tuple[int, int]]:
    """(absolute offset, position) of each entry of an .index file; the base offset comes from the file's name."""

def read_timeindex(path: str) -> list[tuple[int, int]]:
    """(timestamp_ms, absolute offset) of each entry of a .timeindex file."""

def read_snapshot(path: str) -> list[tuple[int, int, int, int, int, int, int, int]]:
    """(producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp_ms, coordinator_epoch,
    current_txn_first_offset) of each entry of a producer .snapshot file. LogError(CORRUPT_MESSAGE) if its CRC is
    wrong."""
