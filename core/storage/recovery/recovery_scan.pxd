# Segments that a start scans.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.recovery.recovery_state cimport recovery_t

cdef int scan_from(log_t* l, const int64_t* bases, int64_t n, int64_t i, recovery_t* r, int64_t* end) noexcept nogil

# 0 if one of the files of segments i .. n - 1 is not empty; NOT_FOUND if all are empty, or -errno.
cdef int find_bytes(log_t* l, const int64_t* bases, int64_t i, int64_t n) noexcept nogil
