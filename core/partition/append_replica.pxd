# Appends of a follower: what its leader sent.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.partition.partition cimport partition_t

cdef enum:
    NOT_ASKED = -100020          # a status: nothing was appended, for it is not what the log waits for any longer

cdef struct replicated_t:        # what a leader sent for a partition
    const uint8_t* data          # batches as the leader stamped them; a partial one at the end is left out
    size_t n
    int32_t leader_epoch         # of that leader; -1: the one that we follow
    int64_t offset               # that it was asked from: where the log must end; -1: wherever it does
    int64_t high_watermark       # the leader's
    const int32_t* gone          # nothing is appended once it is set; NULL: it cannot be

cdef int partition_append_replica(partition_t* p, const replicated_t* sent, int64_t now_ms) noexcept nogil
