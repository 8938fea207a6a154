"""Deadlines: a binary heap of connections by deadline_ms; each knows its place, so that it leaves in O(log n)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t
from libc.stdlib cimport realloc

from pybroker.core.plane.conn cimport conn_t


cdef inline void put(conn_t** heap, int32_t i, conn_t* c) noexcept nogil:
    heap[i] = c
    c.heap_index = i


cdef void settle(conn_t** heap, int32_t count, int32_t i) noexcept nogil:
    """Move the connection at i up or down to where it belongs."""
    cdef conn_t* c = heap[i]
    cdef int32_t child
    while i > 0 and heap[(i - 1) >> 1].deadline_ms > c.deadline_ms:
        put(heap, i, heap[(i - 1) >> 1])
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child + 1 < count and heap[child + 1].deadline_ms < heap[child].deadline_ms:
            child += 1
        if child >= count or heap[child].deadline_ms >= c.deadline_ms:
            break
        put(heap, i, heap[child])
        i = child
    put(heap, i, c)


cdef int heap_add(conn_t*** heap, int32_t* count, int32_t* capacity, conn_t* c) noexcept nogil:
    cdef conn_t** larger
    if count[0] == capacity[0]:
        larger = <conn_t**>realloc(heap[0], sizeof(conn_t*) * (capacity[0] * 2 + 16))
        if larger == NULL:
            return -ENOMEM
        heap[0] = larger
        capacity[0] = capacity[0] * 2 + 16
    heap[0][count[0]] = c
    count[0] += 1
    settle(heap[0], count[0], count[0] - 1)
    return 0


cdef void heap_remove(conn_t** heap, int32_t* count, conn_t* c) noexcept nogil:
    """Take a connection out; one that is not in it is no error."""
    cdef int32_t i = c.heap_index
    if i < 0:
        return
    c.heap_index = -1
    count[0] -= 1
    if i < count[0]:
        heap[i] = heap[count[0]]
        heap[i].heap_index = i
        settle(heap, count[0], i)
