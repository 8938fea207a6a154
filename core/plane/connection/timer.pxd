# The deadlines of operations.
from libc.stdint cimport int32_t, int64_t

cdef struct timer_t:             # a member of its owner
    int64_t deadline_ms
    int32_t index                # in the reactor's heap; -1: not there
    int32_t is_fetch             # counted as a Fetch
    void* owner                  # the object it is a member of

cdef struct timers_t:            # of a reactor
    timer_t** heap
    int32_t count
    int32_t capacity
    int32_t fetches              # of its timers

cdef int timer_set(timers_t* t, timer_t* timer) noexcept nogil
cdef void timer_stop(timers_t* t, timer_t* timer) noexcept nogil
