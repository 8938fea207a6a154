"""The compiled data plane: bytes, files and watermarks, without the GIL and without opinions.

It is imported as ``pybroker.core`` only: under another name every module would exist twice.
"""

if __name__ != "pybroker.core":
    raise ImportError(f"import pybroker.core, not {__name__}: a second copy of core would share nothing with the first")

from pybroker.core.batch import BatchHeader, check_batch, iter_batches, rebuild_batch
from pybroker.core.block import Block
from pybroker.core.broker import Broker
from pybroker.core.columns import COLUMNS, Binary, ColumnBatch, Columns, Headers
from pybroker.core.counters import BOUNDS_US
from pybroker.core.crc32c import checksum as crc32c
from pybroker.core.feed import Feed
from pybroker.core.handles import Appended, Partition, Read, Slice
from pybroker.core.index import read_index, read_timeindex
from pybroker.core.plane import Plane
from pybroker.core.record import build_batch, check_records, walk_records
from pybroker.core.sequence import read_snapshot
from pybroker.core.status import LogError
from pybroker.core.vfs import FAILPOINTS, write_atomic

__all__ = [
    "BOUNDS_US", "COLUMNS", "FAILPOINTS", "Appended", "BatchHeader", "Binary", "Block", "Broker", "ColumnBatch",
    "Columns", "Feed", "Headers", "LogError", "Partition", "Plane", "Read", "Slice", "build_batch", "check_batch",
    "check_records", "crc32c", "iter_batches", "read_index", "read_snapshot", "read_timeindex", "rebuild_batch",
    "walk_records", "write_atomic",
]  # fmt: skip
