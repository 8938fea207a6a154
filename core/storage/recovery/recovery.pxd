# Opening the segments of a log, and checking what a crash left.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.recovery.recovery_state cimport recovery_t

cdef int log_recover(log_t* l, const int64_t* bases, int64_t n, recovery_t* r) noexcept nogil
