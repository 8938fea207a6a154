"""Partitions: their life, who watches them grow, and what a read may see (append.pyx tells of writing)."""

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
from pybroker.core.storage.log cimport log_drop, log_note_unread, log_t, log_view, segments_t
from pybroker.core.storage.log_read cimport log_read
from pybroker.core.storage.offsets_for_times cimport log_find_largest, log_find_time
from pybroker.core.storage.open_files cimport files_drop

cdef enum:
    AGAIN = -100002          # a status: look once more


cdef partition_t* partition_new(log_t* l) noexcept nogil:
    """A partition that owns the caller's hold on a log; its only reference is the caller's."""
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
    """The role of one moment."""
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
    """Be told once, as soon as the bound is beyond `above`. The watcher looks once more after this call: what came
    before is not told.

    The watcher keeps the partition alive, and takes its watch back before it goes. One that watches already stays as
    it is."""
    pthread_mutex_lock(&p.watch_mutex)
    if w.partition == NULL:
        w.bound = bound
        w.above = above
        chain_append(&list_of(p, bound).chain, &w.link, w)
        store_ptr(<void**>&w.partition, p)
        add_i32(&list_of(p, bound).count, 1)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void unlink_watch(partition_t* p, watch_t* w) noexcept nogil:
    """From the last store on its watcher may free it."""
    chain_remove(&w.link)
    add_i32(&list_of(p, w.bound).count, -1)
    store_ptr(<void**>&w.partition, NULL)


cdef void partition_unwatch(watch_t* w) noexcept nogil:
    """Take a watch back, whether it was told or not."""
    cdef partition_t* p = <partition_t*>load_ptr(<void**>&w.partition)
    if p == NULL:
        return
    pthread_mutex_lock(&p.watch_mutex)
    if w.partition != NULL:
        unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void tell(partition_t* p, bint everyone) noexcept nogil:
    """Tell those whose bound is beyond what they wait for, or everyone."""
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
                w.notify(w)      # first: who finds itself unlinked need not wait for this mutex
                unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void partition_tell(partition_t* p) noexcept nogil:
    """Tell each watcher whose bound is beyond what it waits for. Called after watermarks were published."""
    if load_i32(&p.watchers[COMMITTED].count) or load_i32(&p.watchers[WRITTEN].count):
        tell(p, False)


cdef void partition_tell_all(partition_t* p) noexcept nogil:
    """Tell every watcher: the partition goes, was cut, or has another role."""
    cdef int i
    for i in range(WATCH_LISTS):
        if load_i32(&p.watchers[i].count):
            tell(p, True)
            return


cdef void partition_tell_joining(partition_t* p) noexcept nogil:
    """Tell those who wait for a follower that has caught up."""
    cdef watch_t* w
    if load_i32(&p.watchers[JOINING].count) == 0:
        return
    pthread_mutex_lock(&p.watch_mutex)
    while p.watchers[JOINING].chain.first != NULL:
        w = <watch_t*>p.watchers[JOINING].chain.first.owner
        w.notify(w)
        unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef struct visit_t:         # a reader's stay in a log
    int slot
    int64_t generation
    int64_t log_start
    segments_t* list


cdef int enter(log_t* l, visit_t* v) noexcept nogil:
    """Pin a log to look something up in it; 0, or why nothing can be looked up. `leave` ends it either way."""
    v.slot = pin(&l.context.reclaim)
    v.generation = load_i64(&l.generation)
    v.log_start = load_i64(&l.view.log_start)
    v.list = <segments_t*>load_ptr(<void**>&l.segments)
    if load_i32(&l.deleted):
        return UNKNOWN_TOPIC_OR_PARTITION
    return KAFKA_STORAGE_ERROR if v.generation & 1 else 0  # a log that is being truncated is not led


cdef int leave(log_t* l, visit_t* v, int status) noexcept nogil:
    """The status of a look-up, or AGAIN if the log changed under it: what was found may then not be the first."""
    cdef bint moved = <segments_t*>load_ptr(<void**>&l.segments) != v.list or load_i64(&l.view.log_start) != v.log_start
    cdef bint cut = load_i64(&l.generation) != v.generation
    cdef bint deleted = load_i32(&l.deleted) != 0
    unpin(&l.context.reclaim, v.slot)
    if deleted:
        return UNKNOWN_TOPIC_OR_PARTITION  # what was opened by its name may be the file of a successor
    if status == KAFKA_STORAGE_ERROR:
        return status
    return AGAIN if cut or moved else status


cdef int partition_read(
    partition_t* p, int64_t offset, int64_t most, int bound, bint minimum_one, read_t* out) noexcept nogil:
    """Find what a reader at `offset` gets; out.found.files is held for the caller. No lock is taken."""
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
    """The first batch below `bound` that reaches `timestamp`; with LARGEST, the first with the largest of all.
    NOT_FOUND
    if there is none."""
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
