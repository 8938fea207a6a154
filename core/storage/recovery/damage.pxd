# The known damage of a log: its bad spots.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.segment.segment cimport segment_t
from pybroker.core.storage.segment.spots cimport spot_t

cdef int damage_copy(const segment_t* s, segment_t* to) noexcept nogil
cdef int damage_mark(log_t* l, segment_t* s, const spot_t* spot) noexcept nogil
cdef void damage_cut(log_t* l, segment_t* s, int64_t position) noexcept nogil
cdef int damage_search(
    log_t* l, segment_t* s, int64_t next_base, int64_t bound, bint strict, int64_t* end) noexcept nogil
cdef int damage_keep_aside(segment_t* s, int64_t position) noexcept nogil
