# Python's handles to partitions.
from libc.stdint cimport int32_t, uint8_t

from pybroker.core.log_handle cimport Log
from pybroker.core.partition.partition cimport partition_t


cdef class Partition(Log):
    cdef partition_t* state
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly bytes topic_id
    cdef int settle(self, int status, str doing, int32_t leader_epoch, int32_t partition_epoch) except -1
    cdef int refuse(self, int status, const uint8_t* data, size_t n, int32_t leader_epoch, bint internal) except -1
