"""The watermarks of a partition: the end of the log, and the high watermark.

    leader      high watermark = min(end of the log, the last fetch offset of each follower in the maximal ISR);
    follower    high watermark = min(end of the log, the leader's high watermark)

While fewer replicas are in sync than min.insync.replicas asks for, followers outside the ISR count too: what the whole
ISR and that many replicas have is committed, and nothing more. So acknowledged records can be read at a new leader as
soon as any other replica that has them fetches.

A leader whose lease has lapsed may prove that it still leads alone. Another leader is elected from the ISR, and no
longer fetches from this one. So if each follower of the maximal ISR sent a fetch after some time, in our leader epoch,
then no other broker led at that time. The arrival of a fetch proves nothing, as it may have been sent long before. But
a session has at most PIPELINED unanswered fetches, so each was sent after the answer to the one PIPELINED before.

An append moves the log's end. The high watermark is moved by a follower's fetch, by a change of the ISR or the role,
and by an append if there are no followers. A follower's fetch is noted under the log's view mutex alone, so that no
fetch waits for the disk of an append.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.base.error_codes cimport (
    NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, STALE_BROKER_EPOCH, UNKNOWN_LEADER_EPOCH,
)
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport (
    FOLLOWER, LEADER, follower_t, partition_t, partition_tell, partition_tell_joining,
)
from pybroker.core.storage.log.log cimport (
    log_active, log_change, log_publish, log_publish_high_watermark, log_t, view_t,
)

cdef enum:
    PIPELINED = 2                # the most unanswered requests of a follower


cdef void watermark_publish_end(partition_t* p, int64_t end) noexcept nogil:
    """Publish the log's new end, and the high watermark. Under the append mutex."""
    cdef log_t* l = p.log
    cdef view_t v
    log_change(l, &v)
    v.log_end = end
    v.active_base = log_active(l).base_offset
    v.active_size = log_active(l).size
    v.high_watermark = committed(p, v.high_watermark, end)
    log_publish(l, &v)


cdef inline int64_t end_of(const partition_t* p, int32_t i, int64_t log_end, int64_t unknown) noexcept nogil:
    """The end of our log (i = -1) or of a follower's; `unknown` if it has not fetched in this leader epoch."""
    if i < 0:
        return log_end
    return p.followers[i].log_end if p.followers[i].log_end >= 0 else unknown


cdef int64_t held_by_enough(const partition_t* p, int64_t log_end, int64_t unknown) noexcept nogil:
    """The end of what at least min.insync.replicas replicas have; `unknown` counts for followers whose end is unknown.
    Under the append mutex or the view mutex."""
    cdef int64_t enough = min(peek_i64(&p.min_isr), peek_i64(&p.replica_count)), best = -1, end, n
    cdef int32_t i, k
    for i in range(-1, p.follower_count):
        end, n = end_of(p, i, log_end, unknown), 0
        for k in range(-1, p.follower_count):
            n += end_of(p, k, log_end, unknown) >= end
        if n >= enough:
            best = max(best, end)
    return best


cdef bint watermark_is_certain(partition_t* p) noexcept nogil:
    """True unless an earlier leader's high watermark may have been higher (KIP-207). It was at most the end of our log
    when we began to lead, and of what min.insync.replicas replicas have."""
    cdef bint certain
    pthread_mutex_lock(&p.log.view_mutex)
    certain = p.log.view.high_watermark >= p.lead_start or (
        is_under_min_isr(p)
        and p.log.view.high_watermark >= held_by_enough(p, p.log.view.log_end, INT64_MAX))
    pthread_mutex_unlock(&p.log.view_mutex)
    return certain


cdef void move(partition_t* p, int64_t offset) noexcept nogil:
    """Publish the high watermark, if it is higher. Under the view mutex."""
    if offset > p.log.view.high_watermark:
        log_publish_high_watermark(p.log, offset)


cdef follower_t* find(partition_t* p, int32_t broker) noexcept nogil:
    cdef int32_t i
    for i in range(p.follower_count):
        if p.followers[i].broker == broker:
            return &p.followers[i]
    return NULL


cdef void note_order(follower_t* f, int32_t session, int32_t epoch) noexcept nogil:
    """Note the time after which a fetch was sent; it is request `epoch` of a session (0: none)."""
    if session == 0 or session != f.session or epoch <= f.session_epoch:
        f.earlier_ms = f.asked_after_ms = -1
    else:
        f.asked_after_ms = f.fetched_ms if epoch - f.session_epoch >= PIPELINED else f.earlier_ms
        f.earlier_ms = f.fetched_ms
    f.session, f.session_epoch = session, epoch


cdef int note(
    partition_t* p, int32_t broker, int64_t broker_epoch, int64_t leader_epoch, int64_t offset, int64_t log_start,
    int32_t session, int32_t session_epoch, int64_t now_ms, bint* joining) noexcept nogil:
    """Note a follower's fetch, or return why it does not count. `joining`: the follower is outside the ISR, and has
    caught up. Under the view mutex."""
    cdef view_t* v = &p.log.view
    cdef int status = check_epoch(p, leader_epoch)
    cdef follower_t* f
    if status != 0:
        return status
    if p.role.kind != LEADER:
        return NOT_LEADER_OR_FOLLOWER
    f = find(p, broker)
    if f == NULL:
        return UNKNOWN_LEADER_EPOCH if leader_epoch >= 0 else NOT_LEADER_OR_FOLLOWER
    if 0 <= broker_epoch < f.broker_epoch:
        return STALE_BROKER_EPOCH
    if offset < v.log_start or offset > v.log_end:
        return OFFSET_OUT_OF_RANGE
    if offset == v.log_end:
        f.caught_up_ms = now_ms
    elif f.log_end >= 0 and offset >= f.leader_end:
        f.caught_up_ms = f.fetched_ms
    f.broker_epoch = max(broker_epoch, f.broker_epoch)
    f.log_end = offset
    f.leader_end = v.log_end
    f.log_start = log_start
    note_order(f, session if leader_epoch >= 0 else 0, session_epoch)
    f.fetched_ms = now_ms
    joining[0] = not f.in_isr and offset >= max(v.high_watermark, p.epoch_start)
    move(p, committed(p, v.high_watermark, v.log_end))
    return 0


cdef int watermark_note_fetch(
    partition_t* p, int32_t broker, int64_t broker_epoch, int64_t leader_epoch, int64_t offset, int64_t log_start,
    int32_t session, int32_t session_epoch, int64_t now_ms) noexcept nogil:
    """Note that a follower fetches from `offset`, and so has all records before. 0, or a Kafka code if the fetch does
    not count.

    `leader_epoch`, `log_start` and `broker_epoch` are the follower's, -1 if unknown. The fetch is request
    `session_epoch` of a fetch session; `session` is 0 for none."""
    cdef bint joining = False
    cdef int status
    pthread_mutex_lock(&p.log.view_mutex)
    status = note(
        p, broker, broker_epoch, leader_epoch, offset, log_start, session, session_epoch, now_ms, &joining)
    pthread_mutex_unlock(&p.log.view_mutex)
    if status == 0:
        partition_tell(p)
    if joining:
        partition_tell_joining(p)
    return status


cdef bint watermark_is_in_sync(partition_t* p, int32_t broker) noexcept nogil:
    """True if a broker is a follower in the maximal ISR."""
    cdef follower_t* f
    cdef bint in_sync
    pthread_mutex_lock(&p.log.view_mutex)
    f = find(p, broker)
    in_sync = f != NULL and f.in_isr
    pthread_mutex_unlock(&p.log.view_mutex)
    return in_sync


cdef int64_t watermark_proven_ms(partition_t* p) noexcept nogil:
    """A time, by the monotonic clock, at which no other broker led in a later epoch; -1 if none is known. INT64_MAX if
    the ISR is this broker alone: no other can be elected from it."""
    cdef int64_t proven = INT64_MAX
    cdef int32_t i
    pthread_mutex_lock(&p.log.view_mutex)
    if p.role.kind != LEADER:
        proven = -1
    for i in range(p.follower_count):
        if p.followers[i].in_isr:
            proven = min(proven, p.followers[i].asked_after_ms)
    pthread_mutex_unlock(&p.log.view_mutex)
    return proven


cdef int32_t watermark_followers(partition_t* p, follower_t** out) noexcept nogil:
    """Copy the followers' state into memory that the caller frees. Return how many there are, or -ENOMEM."""
    cdef int32_t n
    pthread_mutex_lock(&p.log.view_mutex)
    n = p.follower_count
    out[0] = <follower_t*>malloc(sizeof(follower_t) * (n + 1))
    if out[0] != NULL and n > 0:
        memcpy(out[0], p.followers, sizeof(follower_t) * n)
    pthread_mutex_unlock(&p.log.view_mutex)
    return n if out[0] != NULL else -ENOMEM


cdef int watermark_learn(partition_t* p, int64_t leader_epoch, int64_t high_watermark) noexcept nogil:
    """Apply the high watermark that our leader sent."""
    cdef int status
    pthread_mutex_lock(&p.log.view_mutex)
    status = NOT_LEADER_OR_FOLLOWER if p.role.kind != FOLLOWER else check_epoch(p, leader_epoch)
    if status == 0:
        move(p, min(high_watermark, p.log.view.log_end))
    pthread_mutex_unlock(&p.log.view_mutex)
    return status
