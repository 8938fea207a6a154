# The transaction index of a segment: found, read, extended, carried on to another object of the segment.
from libc.stdint cimport int64_t

from pybroker.core.storage.segment.segment cimport segment_t
from pybroker.core.storage.segment.transaction_index cimport aborted_t, aborts_t

cdef int segment_aborts(segment_t* s, aborts_t** out) noexcept nogil
cdef int segment_reserve_aborts(segment_t* s, int64_t n) noexcept nogil
cdef int segment_add_abort(segment_t* s, const aborted_t* entry) noexcept nogil
cdef int segment_look_for_aborts(segment_t* s) noexcept nogil
cdef int segment_forget_aborts(segment_t* s) noexcept nogil
cdef int segment_copy_aborts(segment_t* s, segment_t* to) noexcept nogil
cdef bint segment_has_aborts(const segment_t* s) noexcept nogil
