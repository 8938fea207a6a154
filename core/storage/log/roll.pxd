# The next segment of a log.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t

cdef enum:
    SEGMENT_SPAN_MAX = 2147483647    # relative offsets are 32 bits

cdef bint log_must_roll(
    log_t* l, int64_t bytes, int64_t last_offset, int64_t max_timestamp, int64_t now_ms) noexcept nogil
cdef int log_roll(log_t* l) noexcept nogil
cdef int log_roll_if_still(log_t* l, int64_t end, bint* rolled) noexcept nogil
cdef int log_keep_snapshot(log_t* l) noexcept nogil
