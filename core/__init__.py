"""The compiled data plane: bytes, files and watermarks, without the GIL and without opinions.

It is imported as ``pybroker.core`` only: under another name every module would exist twice.
"""

if __name__ != "pybroker.core":
    raise ImportError(f"import pybroker.core, not {__name__}: a second copy of core would share nothing with the first")

from pybroker.core.batch import BatchHeader, check_batch, iter_batches, rebuild_batch
from pybroker.core.broker import Broker
from pybroker.core.compaction import Cleaned, clean
from pybroker.core.counters import BOUNDS_US
from pybroker.core.crc32c import checksum as crc32c
from pybroker.core.scrub import SegmentScan, bad_spots, mark_damaged
from pybroker.core.handles import Appended, Partition, Read
from pybroker.core.index import read_index, read_timeindex
from pybroker.core.load import Load
from pybroker.core.plane import Plane
from pybroker.core.record import check_records, walk_records
from pybroker.core.sequence import read_snapshot
from pybroker.core.slices import Slice
from pybroker.core.status import LogError, MissingFiles
from pybroker.core.vfs import FAILPOINTS, write_atomic

from pybroker.core.appender import NO_CHOICE, NO_MEMORY, NO_TOPIC, Appender, OpenQueue
from pybroker.core.block import Block
from pybroker.core.builder import BatchBuilder, SealedBatch, build_batch
from pybroker.core.columns import COLUMNS, Binary, ColumnBatch, Columns, Headers
from pybroker.core.encode import Encoder, partitions_of
from pybroker.core.feed import Feed
from pybroker.core.objects import Record, read_records
from pybroker.core.pending import Delivery, PendingBatch, RecordMetadata
from pybroker.core.source import ByteColumn, HeaderColumn

__all__ = [
    "BOUNDS_US",
    "COLUMNS",
    "FAILPOINTS",
    "NO_CHOICE",
    "NO_MEMORY",
    "NO_TOPIC",
    "Appended",
    "Appender",
    "BatchBuilder",
    "BatchHeader",
    "Binary",
    "Block",
    "Broker",
    "ByteColumn",
    "Cleaned",
    "ColumnBatch",
    "Columns",
    "Delivery",
    "Encoder",
    "Feed",
    "HeaderColumn",
    "Headers",
    "Load",
    "LogError",
    "MissingFiles",
    "OpenQueue",
    "Partition",
    "PendingBatch",
    "Plane",
    "Read",
    "Record",
    "RecordMetadata",
    "SealedBatch",
    "SegmentScan",
    "Slice",
    "bad_spots",
    "build_batch",
    "check_batch",
    "check_records",
    "clean",
    "crc32c",
    "iter_batches",
    "mark_damaged",
    "partitions_of",
    "read_index",
    "read_records",
    "read_snapshot",
    "read_timeindex",
    "rebuild_batch",
    "walk_records",
    "write_atomic",
]
