"""Partitions: their lifetime, watchers, and reads (append.pyx has the writes)."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.atomic cimport add_i32, load_i32, load_i64, load_ptr, seq_get, seq_read, seq_retry, store_ptr
from pybroker.core.base.chain cimport chain_append, chain_remove, link_t
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from pybroker.core.base.reclamation cimport pin, unpin
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.log cimport log_drop, log_note_unread, log_t, log_view, segments_t
from pybroker.core.storage.log.log_read cimport log_read
from pybroker.core.storage.log.offsets_for_times cimport log_find_largest, log_find_time
from pybroker.core.storage.segment.open_files cimport files_drop

cdef enum:
    AGAIN = -100002          # a status: repeat the look-up


cdef partition_t* partition_new(log_t* l) noexcept nogil:
    """Create a partition, which takes over the caller's hold on a log. The caller has its only reference."""
    cdef partition_t* p = <partition_t*>calloc(1, sizeof(partition_t))
    if p == NULL:
        return NULL
    p.refs = 1
    p.log = l
    p.role.leader = p.role.leader_epoch = p.role.partition_epoch = -1
    pthread_mutex_init(&p.watch_mutex, NULL)
    return p


cdef void partition_hold(partition_t* p) noexcept nogil:
    add_i32(&p.refs, 1)


cdef void partition_drop(void* partition) noexcept nogil:
    cdef partition_t* p = <partition_t*>partition
    if add_i32(&p.refs, -1) > 0:
        return
    log_drop(p.log)
    pthread_mutex_destroy(&p.watch_mutex)
    free(p.followers)
    free(p)


cdef void partition_role(partition_t* p, role_t* out) noexcept nogil:
    """Copy the role consistently."""
    cdef uint32_t s
    while True:
        s = seq_read(&p.role_lock)
        out.kind = seq_get(&p.role.kind)
        out.leader = seq_get(&p.role.leader)
        out.leader_epoch = seq_get(&p.role.leader_epoch)
        out.partition_epoch = seq_get(&p.role.partition_epoch)
        if not seq_retry(&p.role_lock, s):
            return


cdef inline watchers_t* list_of(partition_t* p, int bound) noexcept nogil:
    if bound == BOUND_ISR:
        return &p.watchers[JOINING]
    return &p.watchers[WRITTEN if bound == BOUND_LOG_END else COMMITTED]


cdef void partition_watch(partition_t* p, watch_t* w, int bound, int64_t above) noexcept nogil:
    """Set a watch, which is notified once, when the bound is beyond `above`. The caller must check the bound again
    after this call: earlier changes are not notified.

    The watcher holds the partition, and removes its watch before it ends. A watch that is set already stays as it
    is."""
    pthread_mutex_lock(&p.watch_mutex)
    if w.partition == NULL:
        w.bound = bound
        w.above = above
        chain_append(&list_of(p, bound).chain, &w.link, w)
        store_ptr(<void**>&w.partition, p)
        add_i32(&list_of(p, bound).count, 1)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void unlink_watch(partition_t* p, watch_t* w) noexcept nogil:
    """Unlink a watch. After the last store, the watcher may free it."""
    chain_remove(&w.link)
    add_i32(&list_of(p, w.bound).count, -1)
    store_ptr(<void**>&w.partition, NULL)


cdef void partition_unwatch(watch_t* w) noexcept nogil:
    """Remove a watch, whether it was notified or not."""
    cdef partition_t* p = <partition_t*>load_ptr(<void**>&w.partition)
    if p == NULL:
        return
    pthread_mutex_lock(&p.watch_mutex)
    if w.partition != NULL:
        unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void tell(partition_t* p, bint everyone) noexcept nogil:
    """Notify the watchers whose bound is beyond their offset, or all."""
    cdef link_t* link
    cdef watch_t* w
    cdef view_t v
    cdef int i
    pthread_mutex_lock(&p.watch_mutex)
    log_view(p.log, &v)
    for i in range(WATCH_LISTS if everyone else <int>JOINING):
        link = p.watchers[i].chain.first
        while link != NULL:
            w = <watch_t*>link.owner
            link = link.next
            if everyone or bound_of(&v, w.bound) > w.above:
                w.notify(w)      # before the unlink: an unlinked watcher may free itself without this mutex
                unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void partition_tell(partition_t* p) noexcept nogil:
    """Notify each watcher whose bound is beyond its offset. Called after watermarks were published."""
    if load_i32(&p.watchers[COMMITTED].count) or load_i32(&p.watchers[WRITTEN].count):
        tell(p, False)


cdef void partition_tell_all(partition_t* p) noexcept nogil:
    """Notify every watcher: the partition goes away, was truncated, or has another role."""
    cdef int i
    for i in range(WATCH_LISTS):
        if load_i32(&p.watchers[i].count):
            tell(p, True)
            return


cdef void partition_tell_joining(partition_t* p) noexcept nogil:
    """Notify the watchers for a follower that has caught up."""
    cdef watch_t* w
    if load_i32(&p.watchers[JOINING].count) == 0:
        return
    pthread_mutex_lock(&p.watch_mutex)
    while p.watchers[JOINING].chain.first != NULL:
        w = <watch_t*>p.watchers[JOINING].chain.first.owner
        w.notify(w)
        unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef struct visit_t:         # a look-up in a pinned log
    int slot
    int64_t generation
    int64_t log_start
    segments_t* list


cdef int enter(log_t* l, visit_t* v) noexcept nogil:
    """Pin a log for a look-up: 0, or an error if none is possible. `leave` must follow either way."""
    v.slot = pin(&l.context.reclaim)
    v.generation = load_i64(&l.generation)
    v.log_start = load_i64(&l.view.log_start)
    v.list = <segments_t*>load_ptr(<void**>&l.segments)
    if load_i32(&l.deleted):
        return UNKNOWN_TOPIC_OR_PARTITION
    return KAFKA_STORAGE_ERROR if v.generation & 1 else 0  # it is being truncated, so we do not lead it


cdef int leave(log_t* l, visit_t* v, int status) noexcept nogil:
    """The status of a look-up, or AGAIN if the log changed meanwhile, as the result may be outdated."""
    cdef bint moved = <segments_t*>load_ptr(<void**>&l.segments) != v.list or load_i64(&l.view.log_start) != v.log_start
    cdef bint cut = load_i64(&l.generation) != v.generation
    cdef bint deleted = load_i32(&l.deleted) != 0
    unpin(&l.context.reclaim, v.slot)
    if deleted:
        return UNKNOWN_TOPIC_OR_PARTITION  # a file opened by name may belong to a new partition with the same name
    if status == KAFKA_STORAGE_ERROR:
        return status
    return AGAIN if cut or moved else status


cdef int partition_read(
    partition_t* p, int64_t offset, int64_t most, int bound, bint minimum_one, read_t* out) noexcept nogil:
    """Find the batches for a reader at `offset`; out.found.files is held for the caller. No lock is taken."""
    cdef log_t* l = p.log
    cdef visit_t visit
    cdef int64_t end
    cdef int status = AGAIN
    while status == AGAIN:
        out.found.files = NULL
        out.found.length = 0
        status = enter(l, &visit)
        out.generation = visit.generation
        log_view(l, &out.view)
        end = bound_of(&out.view, bound)
        if status == 0 and (offset < out.view.log_start or offset > out.view.log_end):
            status = OFFSET_OUT_OF_RANGE
        elif status == 0:
            status = log_read(l, offset, most, end, minimum_one, &out.view, &out.found)
        status = leave(l, &visit, status)
        if status != 0 and out.found.files != NULL:
            files_drop(out.found.files)
            out.found.files = NULL
    return log_note_unread(l, status)


cdef int partition_find(partition_t* p, int64_t timestamp, int64_t bound, batch_t* out) noexcept nogil:
    """Find the first batch below `bound` that reaches `timestamp`; with LARGEST, the first with the largest timestamp.
    NOT_FOUND if there is none."""
    cdef visit_t visit
    cdef int status = AGAIN
    while status == AGAIN:
        status = enter(p.log, &visit)
        if status == 0 and timestamp == LARGEST:
            status = log_find_largest(p.log, out)
        elif status == 0:
            status = log_find_time(p.log, timestamp, bound, out)
        status = leave(p.log, &visit, status)
    return log_note_unread(p.log, status)
