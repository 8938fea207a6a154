"""The log cleaner for Python."""

from libc.stdint cimport int64_t
from libc.string cimport memset

from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.compact.cleaner cimport STOPPED, log_clean, round_t
from pybroker.core.compact.record_filter cimport FAILED_IN_PYTHON, Codec
from pybroker.core.compact.replace_segments cimport CHANGED
from pybroker.core.partition_handle cimport Partition

from pybroker.core.base.status import LogError


class Cleaned:
    """The result of a round of compaction."""

    __slots__ = ("bytes_after", "bytes_before", "bytes_moved", "first_dirty", "records_dropped")


def clean(Partition partition, *, int64_t first_dirty, int64_t end, int64_t now_ms, int64_t delete_retention_ms,
          int64_t map_bytes, decompress, compress, int64_t bytes_per_s=0) -> Cleaned | None:
    """Run one round of compaction; see core/__init__.pyi."""
    cdef round_t c
    cdef Codec codec = Codec(decompress, compress)
    cdef int status
    memset(&c, 0, sizeof(c))
    c.log = partition.log
    c.bytes_per_s = bytes_per_s
    c.filter.keys_from = first_dirty
    c.filter.now_ms = now_ms
    c.filter.delete_retention_ms = delete_retention_ms
    c.filter.codec = <void*>codec
    with nogil:
        status = log_clean(&c, end, map_bytes)
    if status == CHANGED or status == STOPPED:
        return None
    if status == FAILED_IN_PYTHON:
        raise LogError(CORRUPT_MESSAGE, f"clean {partition.name}: {codec.failure}") from codec.failure
    if status == CORRUPT_MESSAGE:
        raise LogError(
            status, f"clean {partition.name}: the segment that begins at offset {c.source.base_offset} holds a batch "
            "with a wrong CRC or invalid records")
    partition.check(status, "clean")
    out = Cleaned()
    out.first_dirty = c.filter.keys_end
    out.bytes_before, out.bytes_after, out.bytes_moved = c.before_bytes, c.after_bytes, c.moved_bytes
    out.records_dropped = c.filter.records_dropped
    return out
