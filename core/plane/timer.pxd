# The deadlines of what waits.
from libc.stdint cimport int32_t

from pybroker.core.plane.conn cimport operation_t

cdef struct timers_t:            # of a reactor
    operation_t** heap
    int32_t count
    int32_t capacity
    int32_t fetches              # of those that it has

cdef int timer_set(timers_t* t, operation_t* op) noexcept nogil
cdef void timer_stop(timers_t* t, operation_t* op) noexcept nogil
