# The positions of a log's last batches.
from libc.stdint cimport int64_t, uint32_t

cdef enum:
    RECENT_MAX = 16

cdef struct recent_t:
    uint32_t lock                # a seqlock; one writer, under the append mutex
    int64_t segment              # base offset of their segment, which is active
    int64_t count                # batches added since the ring was reset; it holds the last RECENT_MAX of them
    int64_t last_offsets[<int>RECENT_MAX]
    int64_t ends[<int>RECENT_MAX]  # the position after each

cdef void recent_add(
    recent_t* r, int64_t segment, int64_t position, int64_t before, int64_t last_offset, int64_t end) noexcept nogil
cdef void recent_forget(recent_t* r) noexcept nogil
cdef void recent_copy(const recent_t* r, recent_t* out) noexcept nogil
cdef bint recent_find(const recent_t* copy, int64_t offset, int64_t* start, int64_t* end) noexcept nogil
cdef int64_t recent_boundary(const recent_t* copy, int64_t start, int64_t limit) noexcept nogil
