# The role of a partition's replica here: leader, follower or offline.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.partition.partition cimport follower_t, partition_t

cdef int partition_lead(
    partition_t* p, int32_t leader_epoch, int32_t partition_epoch, const follower_t* followers,
    int32_t count, bint wait) noexcept nogil
cdef int partition_follow(
    partition_t* p, int32_t leader, int32_t leader_epoch, int32_t partition_epoch, bint wait) noexcept nogil
cdef int partition_offline(
    partition_t* p, int32_t leader, int32_t leader_epoch, int32_t partition_epoch) noexcept nogil
cdef int partition_truncate(partition_t* p, int64_t offset, int32_t leader_epoch) noexcept nogil
cdef int partition_set_isr(
    partition_t* p, int32_t leader_epoch, int32_t partition_epoch, const int32_t* isr, int32_t count,
    int32_t in_sync) noexcept nogil
