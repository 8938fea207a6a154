# The watermarks of a partition, and the followers that they wait for.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.base.error_codes cimport FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
from pybroker.core.partition.partition cimport follower_t, partition_t


cdef inline int check_epoch(const partition_t* p, int64_t leader_epoch) noexcept nogil:
    """Compare a request's leader epoch (-1: none) with ours. Under the append mutex or the log's view mutex."""
    if leader_epoch < 0 or leader_epoch == p.role.leader_epoch:
        return 0
    return FENCED_LEADER_EPOCH if leader_epoch < p.role.leader_epoch else UNKNOWN_LEADER_EPOCH


cdef inline bint is_under_min_isr(const partition_t* p) noexcept nogil:
    """True if fewer replicas are in sync than min.insync.replicas, or than all replicas if there are fewer of them."""
    return peek_i64(&p.isr_size) < min(peek_i64(&p.min_isr), peek_i64(&p.replica_count))


cdef inline int64_t committed(const partition_t* p, int64_t high_watermark, int64_t log_end) noexcept nogil:
    """The new high watermark: the end of what all of the maximal ISR has, including us. It never goes back."""
    cdef int64_t end = log_end
    cdef int32_t i
    if p.alone:
        return log_end
    if p.follower_count == 0:
        return high_watermark    # it does not advance if we do not lead
    if is_under_min_isr(p):
        end = held_by_enough(p, log_end, -1)
    for i in range(p.follower_count):
        if p.followers[i].in_isr:
            end = min(end, p.followers[i].log_end)
    return max(end, high_watermark)


cdef int64_t held_by_enough(const partition_t* p, int64_t log_end, int64_t unknown) noexcept nogil
cdef bint watermark_is_certain(partition_t* p) noexcept nogil
cdef void watermark_publish_end(partition_t* p, int64_t end) noexcept nogil
cdef int watermark_note_fetch(
    partition_t* p, int32_t broker, int64_t broker_epoch, int64_t leader_epoch, int64_t offset, int64_t log_start,
    int32_t session, int32_t session_epoch, int64_t now_ms) noexcept nogil
cdef int64_t watermark_proven_ms(partition_t* p) noexcept nogil
cdef bint watermark_is_in_sync(partition_t* p, int32_t broker) noexcept nogil
cdef int32_t watermark_followers(partition_t* p, follower_t** out) noexcept nogil
cdef int watermark_learn(partition_t* p, int64_t leader_epoch, int64_t high_watermark) noexcept nogil
