# The log's tail cut off.
from libc.stdint cimport int64_t

from pybroker.core.storage.log cimport log_t

cdef int log_truncate(log_t* l, int64_t offset) noexcept nogil
