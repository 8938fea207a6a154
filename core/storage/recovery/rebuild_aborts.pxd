# A transaction index that is not to be trusted, built again.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t

cdef int rebuild_aborts(log_t* l, int64_t i, int64_t end) noexcept nogil
