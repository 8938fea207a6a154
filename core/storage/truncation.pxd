# The log's tail cut off.
from libc.stdint cimport int64_t

from pybroker.core.storage.log cimport log_t

ctypedef int (*may_cut_fn)(void* whose) noexcept nogil
# 0, or why not; asked under the append mutex.

cdef int log_truncate(log_t* l, int64_t offset, may_cut_fn may_cut, void* whose) noexcept nogil
