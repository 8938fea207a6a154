# Who leads a partition.
from libc.stdint cimport int32_t

from pybroker.core.partition.partition cimport partition_t

cdef int partition_lead(partition_t* p, int32_t leader_epoch, int32_t partition_epoch) noexcept nogil
