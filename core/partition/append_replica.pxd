# Appends of a follower: batches from its leader.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.partition.partition cimport partition_t

cdef enum:
    NOT_ASKED = -100020          # a status: not appended, as the answer is for another log end or was given up

cdef struct replicated_t:        # the part of a leader's answer for one partition
    const uint8_t* data          # batches as the leader stamped them; a partial one at the end is left out
    size_t n
    int32_t leader_epoch         # of that leader; -1: the one that we follow
    int64_t offset               # the fetch offset, where the log must still end; -1: not checked
    int64_t high_watermark       # the leader's
    const int32_t* gone          # no append once it is set; NULL: never set

cdef int partition_append_replica(partition_t* p, const replicated_t* sent, int64_t now_ms) noexcept nogil
