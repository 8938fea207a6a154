# Checking the batches of a segment after a crash.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.log cimport log_t
from pybroker.core.recovery cimport recovery_t
from pybroker.core.segment cimport segment_t

cdef enum:
    SCAN_BYTES = 256 << 10       # in the second-level cache, so that the CRC reads what pread just wrote

cdef struct scan_t:
    log_t* log
    segment_t* segment
    recovery_t* recovery
    uint8_t* buffer
    int64_t buffered         # position of the buffer in the file
    size_t length
    int64_t expected         # the offset that comes next
    int32_t epoch            # of the batch before
    bint strict              # offsets have no gaps: nothing was compacted away

cdef int scan_segment(scan_t* c, int64_t* end) noexcept nogil
