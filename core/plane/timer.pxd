# The deadlines of parked connections: a binary heap, the soonest first.
from libc.stdint cimport int32_t

from pybroker.core.plane.conn cimport conn_t

cdef int heap_add(conn_t*** heap, int32_t* count, int32_t* capacity, conn_t* c) noexcept nogil
cdef void heap_remove(conn_t** heap, int32_t* count, conn_t* c) noexcept nogil
