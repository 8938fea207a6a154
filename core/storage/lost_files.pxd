# Files of logs that have lost their names.
from libc.stdint cimport int64_t

from pybroker.core.storage.log cimport log_t

cdef bint log_lost_file(log_t* l) noexcept nogil
cdef int64_t logs_lost(log_t** logs, int64_t n) noexcept nogil
