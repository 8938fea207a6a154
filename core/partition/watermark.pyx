"""The watermarks of a partition: what is written, and how far readers see it."""

from libc.stdint cimport int64_t

from pybroker.core.storage.log cimport log_active, log_publish, view_t
from pybroker.core.storage.producer_state cimport sequence_first_open


cdef void log_publish_end(log_t* l, int64_t end, bint transactions) noexcept nogil:
    """Show readers what is written. With one replica the high watermark is the log's end."""
    cdef view_t v = l.view
    cdef int64_t open_ = -1
    v.log_end = end
    v.active_base = log_active(l).base_offset
    v.active_size = log_active(l).size
    v.high_watermark = end
    if transactions or l.view.last_stable < l.view.high_watermark:
        open_ = sequence_first_open(&l.producers)
    v.last_stable = end if open_ < 0 else open_
    log_publish(l, &v)
