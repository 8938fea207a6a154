# The indexes of a segment: loaded, checked, rebuilt.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef void forget_indexes(segment_t* s) noexcept nogil
cdef int load_indexes(segment_t* s, int64_t interval, int32_t* rebuilt) noexcept nogil
cdef int segment_retime(segment_t* s) noexcept nogil
cdef int segment_reopen(log_t* l, const segment_t* known, segment_t** out) noexcept nogil
cdef int segment_rebuild(segment_t* s, int64_t interval) noexcept nogil
