"""The watermarks of a partition: what is written, and how far readers see it."""

from libc.stdint cimport int64_t

from pybroker.core.partition.partition cimport partition_t
from pybroker.core.storage.log cimport (
    log_active, log_change, log_note_transactions, log_publish, log_t, view_t,
)


cdef void watermark_publish_end(partition_t* p, int64_t end, bint transactions) noexcept nogil:
    """Show readers what is written. With one replica the high watermark is the log's end. Under the append mutex."""
    cdef log_t* l = p.log
    cdef view_t v
    log_change(l, &v)
    if transactions:
        log_note_transactions(l)
    v.log_end = end
    v.active_base = log_active(l).base_offset
    v.active_size = log_active(l).size
    v.high_watermark = end
    log_publish(l, &v)
