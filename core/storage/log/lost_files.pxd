# Log files that were removed while in use.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t

cdef bint log_lost_file(log_t* l) noexcept nogil
cdef int64_t logs_lost(log_t** logs, int64_t n) noexcept nogil
