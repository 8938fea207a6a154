# The limit of the descriptors that the segments of a broker keep open.
from libc.stdint cimport int32_t

from pybroker.core.base.atomic cimport load_i32

ctypedef void (*crowded_fn)(void* owner) noexcept nogil

cdef struct budget_t:
    int32_t open             # descriptors open for segments
    int32_t most             # the limit; 0: none
    int32_t waiting          # threads waiting for a descriptor
    crowded_fn crowded       # called when few are left: it closes idle segments
    void* owner

cdef bint budget_take(budget_t* b, bint must) noexcept nogil
cdef void budget_give(budget_t* b) noexcept nogil
cdef void budget_ask(budget_t* b) noexcept nogil
cdef int32_t budget_excess(const budget_t* b) noexcept nogil
cdef bint budget_wait(budget_t* b) noexcept nogil


cdef inline bint budget_is_scarce(const budget_t* b) noexcept nogil:
    """True if more than half of the budget is in use: files that are not needed at once are then not kept open."""
    cdef int32_t most = load_i32(&b.most)
    return most > 0 and load_i32(&b.open) > most // 2
