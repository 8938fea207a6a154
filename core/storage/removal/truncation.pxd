# Truncation: cutting off the log's tail.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t

ctypedef int (*may_cut_fn)(void* whose) noexcept nogil
# Returns 0, or an error that refuses the truncation; called under the append mutex.

cdef int log_truncate(log_t* l, int64_t offset, may_cut_fn may_cut, void* whose) noexcept nogil
