# Python's handles to partitions.
from libc.stdint cimport int32_t, uint8_t

from pybroker.core.partition.partition cimport partition_t
from pybroker.core.storage.log cimport view_t


cdef class Partition:
    cdef partition_t* state
    cdef object owner               # the Broker: its context outlives every log
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly bytes topic_id
    cdef readonly str directory
    cdef readonly str recovery      # one line on what start-up found; empty if nothing was amiss
    cdef str name(self)
    cdef int check(self, int status, str doing) except -1
    cdef int refuse(self, int status, const uint8_t* data, size_t n, int32_t leader_epoch, bint internal) except -1
    cdef bint waited(self) noexcept nogil
    cdef view_t view(self) noexcept
