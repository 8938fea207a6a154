# How many descriptors the segments of a broker keep open at most.
from libc.stdint cimport int32_t

from pybroker.core.base.atomic cimport load_i32

ctypedef void (*crowded_fn)(void* owner) noexcept nogil

cdef struct budget_t:
    int32_t open             # descriptors that segments have
    int32_t most             # that they may have; 0: no limit
    int32_t waiting          # threads that wait for one
    crowded_fn crowded       # called where few are left: idle segments are to be closed
    void* owner

cdef bint budget_take(budget_t* b, bint must) noexcept nogil
cdef void budget_give(budget_t* b) noexcept nogil
cdef void budget_ask(budget_t* b) noexcept nogil
cdef int32_t budget_excess(const budget_t* b) noexcept nogil
cdef bint budget_wait(budget_t* b) noexcept nogil


cdef inline bint budget_is_scarce(const budget_t* b) noexcept nogil:
    """Is half of it in use? Then what is not needed at once is not kept open."""
    cdef int32_t most = load_i32(&b.most)
    return most > 0 and load_i32(&b.open) > most // 2
