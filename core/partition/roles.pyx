"""The role of a partition's replica here, as the controller assigns it.

    opened ──> OFFLINE ──partition_lead──> LEADER <──> FOLLOWER <──partition_follow── OFFLINE
                  └──────────────────── partition_offline ────────────────────┘

Each call has a leader epoch and a partition epoch; one with older epochs than the known ones is refused. A role changes
under the append mutex, so that an append belongs to one epoch, and under the log's view mutex, so that a follower's
fetch does; readers see it by its seqlock. After a change every watcher is notified.
"""

from libc.errno cimport EAGAIN, ENOMEM
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from pybroker.core.base.atomic cimport poke_i64, seq_begin, seq_end, seq_set, store_i32
from pybroker.core.base.clock cimport monotonic_ms
from pybroker.core.base.error_codes cimport FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION, NOT_LEADER_OR_FOLLOWER
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport (
    FOLLOWER, LEADER, OFFLINE, follower_t, partition_t, partition_tell, partition_tell_all,
)
from pybroker.core.partition.watermark cimport check_epoch, committed
from pybroker.core.storage.log.leader_epochs cimport epochs_assign
from pybroker.core.storage.log.log cimport log_change, log_publish, log_t, view_t
from pybroker.core.storage.producers.verifications cimport verifications_free
from pybroker.core.storage.removal.truncation cimport log_truncate


cdef int check_epochs(const partition_t* p, int32_t leader_epoch, int32_t partition_epoch) noexcept nogil:
    """Check whether a request with these epochs may change the role. Under the append mutex."""
    if leader_epoch < p.role.leader_epoch:
        return FENCED_LEADER_EPOCH
    if leader_epoch == p.role.leader_epoch and partition_epoch < p.role.partition_epoch:
        return INVALID_UPDATE_VERSION
    return 0


cdef void set_role(
    partition_t* p, int kind, int32_t leader, int32_t leader_epoch, int32_t partition_epoch) noexcept nogil:
    """Set the role. Under the append mutex and the view mutex."""
    seq_begin(&p.role_lock)
    seq_set(&p.role.kind, kind)
    seq_set(&p.role.leader, leader)
    seq_set(&p.role.leader_epoch, leader_epoch)
    seq_set(&p.role.partition_epoch, partition_epoch)
    seq_end(&p.role_lock)
    if kind != LEADER:
        verifications_free(&p.log.verifications)


cdef void begin_follower(const partition_t* p, follower_t* f, bint same_epoch) noexcept nogil:
    """Initialise a follower's state: kept within a leader epoch, else unknown."""
    cdef int32_t i, in_isr = f.in_isr, adding = f.adding
    f.broker_epoch = f.log_end = f.leader_end = f.log_start = f.fetched_ms = f.caught_up_ms = -1
    f.session = f.session_epoch = 0
    f.earlier_ms = f.asked_after_ms = -1
    for i in range(p.follower_count if same_epoch else 0):
        if p.followers[i].broker == f.broker:
            f[0] = p.followers[i]
            f.in_isr, f.adding = in_isr, adding


cdef int64_t count_replicas(const partition_t* p) noexcept nogil:
    """The replicas that min.insync.replicas can ask for: a topic with one replica takes appends while two are added."""
    cdef int64_t n = 1
    cdef int32_t i
    for i in range(p.follower_count):
        if p.followers[i].in_isr or not p.followers[i].adding:
            n += 1
    return n


cdef inline bint lock(pthread_mutex_t* mutex, bint wait) noexcept nogil:
    """Lock a mutex; False if it is taken and `wait` is False, as its holder may be waiting for the disk."""
    if not wait:
        return pthread_mutex_trylock(mutex) == 0
    pthread_mutex_lock(mutex)
    return True


cdef int partition_lead(
    partition_t* p, int32_t leader_epoch, int32_t partition_epoch, const follower_t* followers,
    int32_t count, bint wait) noexcept nogil:
    """Lead from now on under this epoch, which begins at the log's end, with these followers (`broker`, `in_isr` and
    `adding` are read). Without any, all of the log is committed, even beyond the checkpoint of the high watermark.
    -EAGAIN if it would block and `wait` is False."""
    cdef log_t* l = p.log
    cdef follower_t* mine = <follower_t*>malloc(sizeof(follower_t) * count) if count else NULL
    cdef view_t v
    cdef int32_t i, in_sync = 1
    cdef int status
    if count and mine == NULL:
        return -ENOMEM
    if not lock(&l.append_mutex, wait):
        free(mine)
        return -EAGAIN
    status = check_epochs(p, leader_epoch, partition_epoch)
    if status == 0:
        status = epochs_assign(&l.epochs, leader_epoch, l.view.log_end)
    if status == 0:
        log_change(l, &v)
        for i in range(count):
            mine[i] = followers[i]
            in_sync += mine[i].in_isr != 0
            begin_follower(p, &mine[i], leader_epoch == p.role.leader_epoch)
        if p.role.kind != LEADER or leader_epoch > p.role.leader_epoch + 1:
            p.lead_start = v.log_end
        if p.role.kind != LEADER or leader_epoch != p.role.leader_epoch:
            poke_i64(&p.epoch_start, v.log_end)
            p.opened_ms = monotonic_ms()
        set_role(p, LEADER, -1, leader_epoch, partition_epoch)
        p.followers, mine = mine, p.followers
        p.follower_count = count
        store_i32(&p.alone, count == 0)
        poke_i64(&p.isr_size, in_sync)
        poke_i64(&p.replica_count, count_replicas(p))
        v.high_watermark = committed(p, v.high_watermark, v.log_end)
        log_publish(l, &v)
    pthread_mutex_unlock(&l.append_mutex)
    free(mine)
    if status == 0:
        partition_tell_all(p)
    return status


cdef int lead_no_more(
    partition_t* p, int kind, int32_t leader, int32_t leader_epoch, int32_t partition_epoch, bint wait) noexcept nogil:
    cdef log_t* l = p.log
    cdef follower_t* old = NULL
    cdef view_t v
    cdef int status
    if not lock(&l.append_mutex, wait):
        return -EAGAIN
    status = check_epochs(p, leader_epoch, partition_epoch)
    if status == 0:
        log_change(l, &v)
        set_role(p, kind, leader, leader_epoch, partition_epoch)
        p.followers, old = NULL, p.followers
        p.follower_count = 0
        store_i32(&p.alone, 0)
        poke_i64(&p.isr_size, 0)
        poke_i64(&p.replica_count, 0)
        log_publish(l, &v)
    pthread_mutex_unlock(&l.append_mutex)
    free(old)
    if status == 0:
        partition_tell_all(p)
    return status


cdef int partition_follow(
    partition_t* p, int32_t leader, int32_t leader_epoch, int32_t partition_epoch, bint wait) noexcept nogil:
    """Follow a broker (-1: unknown) from now on: appends of clients are refused. The high watermark stays until the
    leader sends its own. -EAGAIN as in partition_lead."""
    return lead_no_more(p, FOLLOWER, leader, leader_epoch, partition_epoch, wait)


cdef int partition_offline(
    partition_t* p, int32_t leader, int32_t leader_epoch, int32_t partition_epoch) noexcept nogil:
    """Neither lead nor follow from now on; `leader` (-1: unknown) is for answers to clients."""
    return lead_no_more(p, OFFLINE, leader, leader_epoch, partition_epoch, True)


cdef int partition_set_isr(
    partition_t* p, int32_t leader_epoch, int32_t partition_epoch, const int32_t* isr, int32_t count,
    int32_t in_sync) noexcept nogil:
    """Set the maximal ISR, a subset of the known followers; this broker is in it, listed or not. `in_sync`: the size of
    the ISR that the controller knows; -1: the size of this one."""
    cdef log_t* l = p.log
    cdef view_t v
    cdef int32_t i, k, maximal = 1
    cdef int status
    pthread_mutex_lock(&l.append_mutex)
    status = NOT_LEADER_OR_FOLLOWER if p.role.kind != LEADER else check_epoch(p, leader_epoch)
    if status == 0:
        status = check_epochs(p, leader_epoch, partition_epoch)
    if status == 0:
        log_change(l, &v)
        set_role(p, LEADER, -1, leader_epoch, partition_epoch)
        for i in range(p.follower_count):
            p.followers[i].in_isr = 0
            for k in range(count):
                p.followers[i].in_isr |= isr[k] == p.followers[i].broker
            maximal += p.followers[i].in_isr != 0
        poke_i64(&p.isr_size, in_sync if in_sync >= 0 else maximal)
        if in_sync < 0:  # else the change is not settled: replicas about to join do not count yet
            poke_i64(&p.replica_count, count_replicas(p))
        v.high_watermark = committed(p, v.high_watermark, v.log_end)
        log_publish(l, &v)
    pthread_mutex_unlock(&l.append_mutex)
    partition_tell(p)
    return status


cdef struct cut_t:           # a truncation that was decided
    partition_t* partition
    int32_t leader_epoch


cdef int may_cut(void* whose) noexcept nogil:
    """Check that we still follow in the epoch of the decision. Under the append mutex, under which roles change."""
    cdef cut_t* cut = <cut_t*>whose
    if cut.partition.role.kind != FOLLOWER:
        return NOT_LEADER_OR_FOLLOWER
    return check_epoch(cut.partition, cut.leader_epoch)


cdef int partition_truncate(partition_t* p, int64_t offset, int32_t leader_epoch) noexcept nogil:
    """Truncate the log to `offset`, as a follower in this leader epoch; with -1, in any role."""
    cdef cut_t cut
    cut.partition = p
    cut.leader_epoch = leader_epoch
    if leader_epoch < 0:
        return log_truncate(p.log, offset, NULL, NULL)
    return log_truncate(p.log, offset, may_cut, &cut)
