# Python's watches of a partition: on its high watermark, its log end, and followers that may join its ISR.
from libc.stdint cimport int64_t

from pybroker.core.partition.partition cimport partition_t, watch_t
from pybroker.core.plane.thread.reactor cimport plane_t

cdef struct bell_t:
    watch_t committed
    watch_t written
    watch_t joining
    plane_t* plane
    partition_t* held
    int64_t id

cdef bell_t* bell_new(plane_t* plane, partition_t* p, int64_t id) noexcept nogil
cdef void bell_free(bell_t* b) noexcept nogil
