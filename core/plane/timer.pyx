"""Deadlines: a binary heap of operations by deadline_ms; each knows its place, so that it leaves in O(log n)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t
from libc.stdlib cimport realloc

from pybroker.core.plane.conn cimport operation_t


cdef inline void put(operation_t** heap, int32_t i, operation_t* op) noexcept nogil:
    heap[i] = op
    op.heap_index = i


cdef void settle(timers_t* t, int32_t i) noexcept nogil:
    """Move the operation at i up or down to where it belongs."""
    cdef operation_t** heap = t.heap
    cdef operation_t* op = heap[i]
    cdef int32_t child
    while i > 0 and heap[(i - 1) >> 1].deadline_ms > op.deadline_ms:
        put(heap, i, heap[(i - 1) >> 1])
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child + 1 < t.count and heap[child + 1].deadline_ms < heap[child].deadline_ms:
            child += 1
        if child >= t.count or heap[child].deadline_ms >= op.deadline_ms:
            break
        put(heap, i, heap[child])
        i = child
    put(heap, i, op)


cdef int timer_set(timers_t* t, operation_t* op) noexcept nogil:
    """Have an operation found at its deadline; one that has a timer gets it anew. 0, or -ENOMEM."""
    cdef operation_t** larger
    timer_stop(t, op)
    if t.count == t.capacity:
        larger = <operation_t**>realloc(t.heap, sizeof(operation_t*) * (t.capacity * 2 + 16))
        if larger == NULL:
            return -ENOMEM
        t.heap = larger
        t.capacity = t.capacity * 2 + 16
    t.heap[t.count] = op
    t.count += 1
    t.fetches += op.slot != NULL
    settle(t, t.count - 1)
    return 0


cdef void timer_stop(timers_t* t, operation_t* op) noexcept nogil:
    """Take an operation out; one that is not in it is no error."""
    cdef int32_t i = op.heap_index
    if i < 0:
        return
    op.heap_index = -1
    t.count -= 1
    t.fetches -= op.slot != NULL
    if i < t.count:
        t.heap[i] = t.heap[t.count]
        t.heap[i].heap_index = i
        settle(t, i)
