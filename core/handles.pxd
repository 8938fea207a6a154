# Python's handles to partitions and to what reads find.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.context cimport context_t
from pybroker.core.log cimport found_t, log_t, view_t
from pybroker.core.partition cimport partition_t


cdef class Slice:
    cdef found_t found
    cdef log_t* log
    cdef int64_t generation
    cdef object owner               # the Broker: its context outlives every log
    cdef int check(self) except -1
    cdef int borrow(self) except -1
    cdef int refuse(self) except -1


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
    cdef view_t view(self) noexcept


cdef int64_t setting(object config, str name) except? -3
cdef int read_settings(log_t* l, object config) except -1
