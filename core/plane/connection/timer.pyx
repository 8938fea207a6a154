"""Deadlines: a binary heap of timers by deadline_ms; each timer knows its index, so removal takes O(log n)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t
from libc.stdlib cimport realloc


cdef inline void put(timer_t** heap, int32_t i, timer_t* timer) noexcept nogil:
    heap[i] = timer
    timer.index = i


cdef void settle(timers_t* t, int32_t i) noexcept nogil:
    """Move the timer at i up or down to where it belongs."""
    cdef timer_t** heap = t.heap
    cdef timer_t* timer = heap[i]
    cdef int32_t child
    while i > 0 and heap[(i - 1) >> 1].deadline_ms > timer.deadline_ms:
        put(heap, i, heap[(i - 1) >> 1])
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child + 1 < t.count and heap[child + 1].deadline_ms < heap[child].deadline_ms:
            child += 1
        if child >= t.count or heap[child].deadline_ms >= timer.deadline_ms:
            break
        put(heap, i, heap[child])
        i = child
    put(heap, i, timer)


cdef int timer_set(timers_t* t, timer_t* timer) noexcept nogil:
    """Add a timer, or move it to its new deadline. 0, or -ENOMEM."""
    cdef timer_t** larger
    timer_stop(t, timer)
    if t.count == t.capacity:
        larger = <timer_t**>realloc(t.heap, sizeof(timer_t*) * (t.capacity * 2 + 16))
        if larger == NULL:
            return -ENOMEM
        t.heap = larger
        t.capacity = t.capacity * 2 + 16
    t.heap[t.count] = timer
    t.count += 1
    t.fetches += timer.is_fetch
    settle(t, t.count - 1)
    return 0


cdef void timer_stop(timers_t* t, timer_t* timer) noexcept nogil:
    """Remove a timer; one that is not in the heap is no error."""
    cdef int32_t i = timer.index
    if i < 0:
        return
    timer.index = -1
    t.count -= 1
    t.fetches -= timer.is_fetch
    if i < t.count:
        t.heap[i] = t.heap[t.count]
        t.heap[i].index = i
        settle(t, i)
