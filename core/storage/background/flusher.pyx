"""The flusher: one thread per log dir, for work that no append should wait for.

It asks the kernel to begin writing what appends left in the page cache (write-behind). It does so a second later: a
burst is accepted at the speed of memory, and a steady stream is still written as it comes. It also writes index entries
of the active segment, seals and flushes the segments before it, writes their producer snapshots, repairs indexes that a
look-up found bad, and removes files whose delay is over. A thread that flushes holds the flush mutex, but never the
append mutex during a file call. A slow disk holds up only the flusher of its own log dir.
"""

from libc.errno cimport EIO
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport strrchr
from posix.unistd cimport usleep

from pybroker.core.base.atomic cimport cas_i32, load_i32, load_i64, load_ptr, peek_i64, store_i32, store_i64, swap_ptr
from pybroker.core.base.clock cimport monotonic_ms
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport collect, pin, reclaim_t, retire, unpin
from pybroker.core.base.vfs cimport P_EPOCH_WRITE, P_SEGMENT_SYNC, vfs_replace, vfs_sync, vfs_sync_dir, vfs_write_behind
from pybroker.core.storage.log.backlog cimport backlog_empty_trash, backlog_next, work_t
from pybroker.core.storage.log.context cimport context_t
from pybroker.core.storage.log.leader_epochs cimport epochs_retry, epochs_take
from pybroker.core.storage.log.log cimport (
    log_active, log_drop, log_hold, log_lock_files, log_offline, log_t, log_trust, log_view, segments_floor, segments_t,
    snapshot_t, view_t,
)
from pybroker.core.storage.log.log_dir cimport log_dir_t
from pybroker.core.storage.log.lost_files cimport log_lost_file
from pybroker.core.storage.producers.producer_state cimport sequence_save
from pybroker.core.storage.recovery.producer_snapshots cimport (
    producers_keep, producers_prune, producers_take, producers_write,
)
from pybroker.core.storage.recovery.rebuild_aborts cimport rebuild_aborts
from pybroker.core.storage.recovery.reindex cimport segment_rebuild
from pybroker.core.storage.segment.open_files cimport files_drop, files_t
from pybroker.core.storage.segment.segment cimport (
    INDEX_DOUBTED, INDEX_GOOD, PATH_BYTES, segment_files, segment_flush, segment_give_back, segment_is_behind,
    segment_seal, segment_t, segment_write_indexes,
)

cdef enum:
    INDEX_ENTRIES_BEHIND = 512   # entries that an active segment's index file may lack
    LATER_MS = 1000              # from an append to the request that the kernel writes it
    LATER_COUNT = 256            # the most steps that wait
    LATER_BYTES = 512 << 20      # the most bytes of a log dir that wait; above, the oldest step begins at once
    WAITING_LOOK_US = 100        # between two checks whether other threads still wait for the log


cdef int write_snapshots(log_t* l) noexcept nogil:
    """Write the producer snapshots that rolls left. Under the flush mutex."""
    cdef snapshot_t* p
    cdef snapshot_t* after
    cdef int64_t newest = -1
    cdef int written = 0
    cdef int status = 0
    pthread_mutex_lock(&l.append_mutex)
    p = producers_take(l)
    pthread_mutex_unlock(&l.append_mutex)
    while p != NULL:
        after = p.next
        if status == 0:
            status = log_trust(l, producers_write(l, p, True))
            newest = max(newest, p.offset)
            written += 1
        free(p.data)
        free(p)
        p = after
    if status == 0 and written == 1:
        producers_keep(l, newest)
    elif status == 0 and written:
        producers_prune(l, newest)
    return status


cdef int trust(log_t* l, int status) noexcept nogil:
    """Return the status of a flush. A failed sync, -EIO, takes the log dir offline: the kernel reports the error only
    once, so that no later sync can be trusted. A missing index is built again."""
    return log_trust(l, status) if status == -EIO else status


cdef int sync_names(log_t* l) noexcept nogil:
    """Make the names of the log's files durable and, once, its directory's name. Under the flush mutex."""
    cdef char parent[PATH_BYTES]
    cdef char* slash
    cdef int status = vfs_sync_dir(l.context.fs, l.directory)
    if status == 0 and not l.named:
        snprintf(parent, sizeof(parent), "%s", l.directory)
        slash = strrchr(parent, c"/")
        if slash != NULL:
            slash[0] = 0
            status = vfs_sync_dir(l.context.fs, parent)
        l.named = status == 0
    return log_trust(l, status)


cdef int64_t first_unsealed(const segments_t* list) noexcept nogil:
    cdef int64_t i = load_i64(&list.count) - 1
    while i > 0 and not load_i32(&list.items[i - 1].segment.sealed):
        i -= 1
    return i


cdef int seal_rolled(log_t* l) noexcept nogil:
    """Seal the segments before the active one, and flush those past the recovery point, which moves with them. Under
    the flush mutex, pinned."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t n = load_i64(&list.count)
    cdef int64_t i = max(<int64_t>0, min(first_unsealed(list), segments_floor(list, load_i64(&l.recovery_point))))
    cdef segment_t* s
    cdef int status = 0
    while status == 0 and i + 1 < n:
        s = list.items[i].segment
        status = log_trust(l, segment_seal(s, &l.context.reclaim))
        if status == 0:
            status = trust(l, segment_flush(s, s.size))
        if status == 0:
            status = sync_names(l)
        if status == 0:
            status = log_write_epochs(l)
        if status == 0:
            store_i64(&l.recovery_point, max(load_i64(&l.recovery_point), list.items[i + 1].base_offset))
        i += 1
    return status


# A step of write-behind: bytes of a segment that was active then.
cdef struct step_t:
    log_t* log                   # held
    int64_t base_offset
    int64_t position
    int64_t bytes
    int64_t due_ms

# The waiting steps, oldest first. Used by the flusher's thread alone.
cdef struct later_t:
    step_t steps[LATER_COUNT]
    int64_t first
    int64_t count
    int64_t bytes


cdef void begin_oldest(later_t* later) noexcept nogil:
    """Ask the kernel to write the oldest waiting step, unless its segment was sealed and flushed meanwhile."""
    cdef step_t* step = &later.steps[later.first % LATER_COUNT]
    cdef log_t* l = step.log
    cdef reclaim_t* q = &l.context.reclaim
    cdef segments_t* list
    cdef segment_t* s
    cdef files_t* f
    cdef int64_t last
    cdef int slot = pin(q)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    last = load_i64(&list.count) - 1
    if last >= 0:  # during a truncation the list may be empty
        s = list.items[last].segment
        f = <files_t*>load_ptr(<void**>&s.files)
        if s.base_offset == step.base_offset and f != NULL and not load_i32(&s.sealed):
            vfs_write_behind(f.fd, step.position, step.bytes)
    unpin(q, slot)
    later.first += 1
    later.count -= 1
    later.bytes -= step.bytes
    log_drop(l)


cdef void begin_due(later_t* later, int64_t now_ms) noexcept nogil:
    while later.count > 0 and later.steps[later.first % LATER_COUNT].due_ms <= now_ms:
        begin_oldest(later)


cdef void begin_later(later_t* later, log_t* l, int64_t base_offset, int64_t position, int64_t bytes) noexcept nogil:
    """Add a step, which begins after LATER_MS."""
    cdef step_t* step
    if later.count == LATER_COUNT:
        begin_oldest(later)
    log_hold(l)
    step = &later.steps[(later.first + later.count) % LATER_COUNT]
    step.log, step.base_offset, step.position, step.bytes = l, base_offset, position, bytes
    step.due_ms = monotonic_ms() + LATER_MS
    later.count += 1
    later.bytes += bytes
    while later.bytes > LATER_BYTES:
        begin_oldest(later)


cdef void write_behind(log_t* l, later_t* later) noexcept nogil:
    """Schedule write-behind of the active segment's new bytes. Under the flush mutex, pinned."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef segment_t* s = list.items[load_i64(&list.count) - 1].segment
    cdef files_t* f = <files_t*>load_ptr(<void**>&s.files)
    cdef int64_t size = load_i64(&s.size), behind = load_i64(&s.behind)
    if f == NULL or load_i32(&s.sealed):
        return
    if segment_is_behind(s, size, l.context.write_behind_bytes):
        begin_later(later, l, s.base_offset, behind, size - behind)
        store_i64(&s.behind, size)
    if load_i64(&s.indexes.offsets.count) - s.indexes.offsets.written >= INDEX_ENTRIES_BEHIND:
        log_trust(l, segment_write_indexes(s, "", False))


cdef inline bint is_past(const segment_t* s) noexcept nogil:
    """True if a look-up found a bad index, but in files that were replaced since."""
    return load_i32(&s.index_bad) == INDEX_DOUBTED and load_ptr(<void**>&s.doubted) != load_ptr(<void**>&s.files)


cdef void repair_indexes(log_t* l) noexcept nogil:
    """Rebuild the indexes that look-ups found bad; readers then open the new files. Under the flush mutex, pinned."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef segment_t* s
    cdef void* f
    cdef int64_t i
    if not load_i32(&l.repair):
        return
    store_i32(&l.repair, 0)
    for i in range(load_i64(&list.count)):
        s = list.items[i].segment
        if load_i32(&s.aborts_bad) and load_i32(&s.sealed) and i + 1 < load_i64(&list.count):
            if rebuild_aborts(l, i, list.items[i + 1].base_offset) != 0:
                store_i32(&l.repair, 1)
        if is_past(s):
            cas_i32(&s.index_bad, INDEX_DOUBTED, INDEX_GOOD)
        if load_i32(&s.index_bad) == INDEX_GOOD:
            continue
        if not load_i32(&s.sealed) or segment_rebuild(s, peek_i64(&l.settings.index_interval_bytes)) < 0:
            store_i32(&l.repair, 1)  # try again at the next round
        else:
            store_i32(&s.index_bad, INDEX_GOOD)
            f = swap_ptr(<void**>&s.files, NULL)
            retire(&l.context.reclaim, f, files_drop)


cdef void flusher_work(log_t* l, later_t* later) noexcept nogil:
    """Do one round for one log. Failed work is repeated at the next round; the data itself is in the log already."""
    cdef int slot
    while load_i32(&l.waiting) > 0:
        usleep(WAITING_LOOK_US)
    pthread_mutex_lock(&l.flush_mutex)
    if not load_i32(&l.deleted):
        slot = pin(&l.context.reclaim)
        if not log_offline(l):
            if write_snapshots(l) == 0:
                seal_rolled(l)
            write_behind(l, later)
        repair_indexes(l)
        unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.flush_mutex)


cdef int flush_segments(log_t* l, const view_t* v) noexcept nogil:
    """Flush every segment from the recovery point to the log's end. Under the flush mutex, pinned."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef segment_t* s
    cdef int64_t i = max(<int64_t>0, segments_floor(list, load_i64(&l.recovery_point)))
    cdef int status = 0
    while status == 0 and i < load_i64(&list.count):
        s = list.items[i].segment
        status = trust(l, segment_flush(s, load_i64(&s.size)))
        i += 1
    return status if status != 0 else sync_names(l)


cdef int log_flush(log_t* l) noexcept nogil:
    """Make all of the log durable, and move the recovery point to the end that the log had at the call."""
    cdef view_t v
    cdef int slot, status = 0
    log_lock_files(l)
    slot = pin(&l.context.reclaim)
    log_view(l, &v)
    if log_offline(l):
        status = KAFKA_STORAGE_ERROR
    elif load_i32(&l.deleted) or v.log_end <= load_i64(&l.recovery_point):
        status = 0
    else:
        status = write_snapshots(l)
        if status == 0:
            status = seal_rolled(l)
        if status == 0:
            status = flush_segments(l, &v)
        if status == 0:
            status = log_write_epochs(l)
        if status == 0:
            store_i64(&l.recovery_point, v.log_end)
    unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.flush_mutex)
    return status


cdef int sync_active(log_t* l, segment_t* s) noexcept nogil:
    """Make the active segment's data durable, and its name if it is new. Under the flush mutex, pinned."""
    cdef files_t* f
    cdef int status = log_trust(l, segment_files(s, &f))
    if status < 0:
        return status
    if vfs_sync(l.context.fs, P_SEGMENT_SYNC, f.fd) < 0:
        return trust(l, -EIO)
    if log_lost_file(l):
        return -EIO
    if l.synced_base != s.base_offset + 1:
        status = sync_names(l)
        if status == 0:
            l.synced_base = s.base_offset + 1
    return status


cdef int log_sync(log_t* l) noexcept nogil:
    """Make every record durable that is in the log now: one fdatasync, unless the log has rolled.

    The recovery point does not move: it covers indexes and snapshots too."""
    cdef segments_t* list
    cdef segment_t* active
    cdef view_t v
    cdef int slot, status = 0
    log_lock_files(l)
    slot = pin(&l.context.reclaim)
    log_view(l, &v)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    active = list.items[load_i64(&list.count) - 1].segment
    if log_offline(l):
        status = KAFKA_STORAGE_ERROR
    elif not load_i32(&l.deleted):
        status = write_snapshots(l)
        if status == 0:
            status = seal_rolled(l)
        if status == 0 and not load_i32(&active.sealed):  # else seal_rolled has flushed it, after a roll
            status = sync_active(l, active)
        if status == 0:
            store_i64(&l.synced, v.log_end)
    unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.flush_mutex)
    return status


cdef int log_write_epochs(log_t* l) noexcept nogil:
    """Replace leader-epoch-checkpoint if it lacks the last change. Under the flush mutex."""
    cdef char path[PATH_BYTES]
    cdef char* text = NULL
    cdef size_t n = 0
    cdef int status
    if load_i32(&l.deleted):
        return 0
    status = epochs_take(&l.epochs, &text, &n)
    if text == NULL:
        return status
    snprintf(path, PATH_BYTES, "%s/leader-epoch-checkpoint", l.directory)
    status = log_trust(l, vfs_replace(l.context.fs, P_EPOCH_WRITE, path, text, n, True))
    free(text)
    if status < 0:
        epochs_retry(&l.epochs)
    return status


cdef int close_active(log_t* l) noexcept nogil:
    """Write the final index entries and a snapshot at the log's end; no append follows. Under the flush mutex."""
    cdef snapshot_t p
    cdef segment_t* s = log_active(l)
    cdef int status = segment_write_indexes(s, "", True)
    if status == 0 and (l.producers.highest_id >= 0 or l.view.log_end > l.view.log_start):
        p.offset = l.view.log_end
        status = sequence_save(&l.producers, &p.data, &p.length)
        if status == 0:
            # Synced only if the log ever had a producer: the loss of an empty snapshot costs little.
            status = producers_write(l, &p, l.producers.highest_id >= 0)
            free(p.data)
    return status if status != 0 else segment_give_back(s)


cdef int log_close(log_t* l) noexcept nogil:
    """Stop a log cleanly: make all of it durable, with snapshot and indexes up to its end. Later appends are
    refused."""
    cdef int status = log_flush(l)
    cdef bint whole
    log_lock_files(l)
    if status == 0:
        status = log_write_epochs(l)
    whole = status == 0 and not load_i32(&l.deleted) and not log_offline(l)
    pthread_mutex_lock(&l.append_mutex)
    store_i32(&l.offline, 1)     # from here on appends fail at once
    pthread_mutex_unlock(&l.append_mutex)
    if whole:
        status = close_active(l)
    pthread_mutex_unlock(&l.flush_mutex)
    return status


cdef void flusher_run(context_t* c, log_dir_t* log_dir) noexcept nogil:
    """Run a log dir's flusher: work until the context stops and no work is left."""
    cdef work_t* w
    cdef later_t later
    cdef int64_t now, looked = 0
    cdef bint stops
    later.first = later.count = later.bytes = 0
    while True:
        stops = load_i32(&log_dir.backlog.stopping)  # before the queue is read: nothing is added after `stopping`
        w = backlog_next(&log_dir.backlog, c.idle_ms)
        if w != NULL:
            flusher_work(<log_t*>w.owner, &later)
            log_drop(<log_t*>w.owner)
            collect(&c.reclaim)
        elif stops:
            begin_due(&later, INT64_MAX)
            return
        now = monotonic_ms()
        begin_due(&later, now)
        if now - looked >= c.idle_ms:
            backlog_empty_trash(&log_dir.backlog, c.fs, now)
            collect(&c.reclaim)
            looked = now
