"""The compiled data plane: logs, records and connections, executed without the GIL.

Import it only as ``pybroker.core``: under another name every module would be loaded twice.
"""

if __name__ != "pybroker.core":
    raise ImportError(f"import pybroker.core, not {__name__}: a second copy of core would share nothing with the first")

from pybroker.core.base.crc32c import checksum as crc32c
from pybroker.core.base.status import LogError, MissingFiles
from pybroker.core.base.vfs import FAILPOINTS, write_atomic
from pybroker.core.batch.batch import BatchHeader, check_batch, iter_batches, rebuild_batch
from pybroker.core.batch.lz4_compress import Lz4Compressor
from pybroker.core.batch.record import check_records, walk_records
from pybroker.core.batch.zstd_frame import zstd_frames_are_strict
from pybroker.core.client.load_generator import LoadGenerator
from pybroker.core.codecs import undo
from pybroker.core.compaction import Cleaned, clean
from pybroker.core.data_plane import Plane
from pybroker.core.plane.requests.fetch_find import WITHHELD_MS_MIN
from pybroker.core.scrub import SegmentScan, bad_spots, mark_damaged
from pybroker.core.slices import Slice
from pybroker.core.storage.producers.producer_state import read_snapshot
from pybroker.core.storage.segment.index import read_index, read_timeindex

from pybroker.core.base.counters import BOUNDS_US
from pybroker.core.base.mapping import FileMap
from pybroker.core.base.tls_socket import TlsSocket, set_ciphersuites, tls_available
from pybroker.core.batch.block import Block
from pybroker.core.batch.builder import BatchBuilder, SealedBatch, build_batch
from pybroker.core.client.appender import NO_CHOICE, NO_MEMORY, NO_TOPIC, Appender, OpenQueue
from pybroker.core.client.producer_batch import Delivery, PendingBatch, RecordMetadata, log_callback
from pybroker.core.columns.avro_columns import AvroBatch, AvroDecoder
from pybroker.core.columns.columns import COLUMNS, Binary, ColumnBatch, Columns, Headers
from pybroker.core.columns.encode import Encoder, partitions_of
from pybroker.core.columns.json_columns import JsonBatch, JsonDecoder
from pybroker.core.columns.objects import Record, RecordSteps, read_records
from pybroker.core.columns.partition_batches import PartitionBatches
from pybroker.core.columns.source import ByteColumn, HeaderColumn
from pybroker.core.columns.value_columns import ValueColumn
from pybroker.core.leader_connection import FetcherEvent, LeaderConnection
from pybroker.core.log_manager import LogManager
from pybroker.core.moving import FutureLog
from pybroker.core.partition_handle import Appended, Follower, Partition, Read, Role
from pybroker.core.quota_bucket import QuotaBucket
from pybroker.core.request_samples import RequestSample, RequestSamples

__all__ = [
    "BOUNDS_US",
    "COLUMNS",
    "FAILPOINTS",
    "NO_CHOICE",
    "NO_MEMORY",
    "NO_TOPIC",
    "WITHHELD_MS_MIN",
    "Appended",
    "Appender",
    "AvroBatch",
    "AvroDecoder",
    "BatchBuilder",
    "BatchHeader",
    "Binary",
    "Block",
    "ByteColumn",
    "Cleaned",
    "ColumnBatch",
    "Columns",
    "Delivery",
    "Encoder",
    "FetcherEvent",
    "FileMap",
    "Follower",
    "FutureLog",
    "HeaderColumn",
    "Headers",
    "JsonBatch",
    "JsonDecoder",
    "LeaderConnection",
    "LoadGenerator",
    "LogError",
    "LogManager",
    "Lz4Compressor",
    "MissingFiles",
    "OpenQueue",
    "Partition",
    "PartitionBatches",
    "PendingBatch",
    "Plane",
    "QuotaBucket",
    "Read",
    "Record",
    "RecordMetadata",
    "RecordSteps",
    "RequestSample",
    "RequestSamples",
    "Role",
    "SealedBatch",
    "SegmentScan",
    "Slice",
    "TlsSocket",
    "ValueColumn",
    "bad_spots",
    "build_batch",
    "check_batch",
    "check_records",
    "clean",
    "crc32c",
    "iter_batches",
    "log_callback",
    "mark_damaged",
    "partitions_of",
    "read_index",
    "read_records",
    "read_snapshot",
    "read_timeindex",
    "rebuild_batch",
    "set_ciphersuites",
    "tls_available",
    "undo",
    "walk_records",
    "write_atomic",
    "zstd_frames_are_strict",
]
