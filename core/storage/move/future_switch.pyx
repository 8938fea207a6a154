"""The switch of a log to its copy, in an instant: the log object stays, its segments become the copy's.

Under both mutexes, so that nothing is appended, flushed, removed or truncated meanwhile:

    1. the last bytes of the active segment are copied and, if records of the log are known to be on disk, synced
    2. the copy's directory gets the name of the log
    3. segments that name the copied files are published; readers in the old ones look again, or go on in open files
    4. the old directory is renamed to -delete

A crash before step 2 leaves the old log, and a copy that a start removes. Between 2 and 4 it leaves two directories
of the same name and content: the copy has the mark `switching`, and is taken. After a loss of power either rename may
be missing; the copy was on disk with its mark before. The mark is removed once both renames are on disk.

Watermarks, producers, epochs, roles, followers and waiting requests are in memory, and none of them changes.
"""

from libc.errno cimport EIO, ENAMETOOLONG, ENOMEM
from libc.stdint cimport int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport strcat, strcpy, strlen

from pybroker.core.base.atomic cimport (
    add_i32, add_i64, cas_i32, load_i32, load_i64, peek_i64, poke_i64, store_i32, store_ptr,
)
from pybroker.core.base.budget cimport budget_take
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport retire
from pybroker.core.base.vfs cimport (
    P_MOVE_LEAVE, P_MOVE_RENAME, P_MOVE_SYNC, P_NONE, vfs_rename, vfs_sync, vfs_sync_dir, vfs_unlink,
)
from pybroker.core.storage.background.idle_files cimport idle_add, idle_remove
from pybroker.core.storage.log.backlog cimport backlog_discard
from pybroker.core.storage.log.log cimport (
    PATH_BYTES_MAX, log_durable, log_lock_files, log_offline, log_t, log_wake_flusher, path_t, segments_free,
    segments_new, segments_t,
)
from pybroker.core.storage.log.log_dir cimport log_dir_t, log_dir_trust
from pybroker.core.storage.move.future_log cimport (
    LATER, files_beside, future_close, future_copy_range, future_open_active, future_t, piece_t,
)
from pybroker.core.storage.recovery.damage cimport damage_copy
from pybroker.core.storage.segment.open_files cimport files_new
from pybroker.core.storage.segment.segment cimport INDEX_BAD, segment_free, segment_new, segment_t
from pybroker.core.storage.segment.segment_aborts cimport segment_copy_aborts, segment_has_aborts

cdef enum:
    REST_BYTES = 1 << 20         # the most that appends wait for

cdef struct next_t:              # what will be published
    path_t* path
    segments_t* list


cdef int check_copied(future_t* f) noexcept nogil:
    """LATER unless the copy has every segment, but for a rest of the active one. Under both mutexes."""
    cdef segments_t* list = f.log.segments
    cdef segment_t* s = NULL
    cdef piece_t* p = NULL
    cdef int64_t i
    if list.count != f.count or list.count == 0:
        return LATER
    for i in range(list.count):
        s, p = list.items[i].segment, &f.pieces[i]
        if p.base_offset != s.base_offset or s.followed != f.number or p.copied > s.size:
            return LATER
        if i + 1 < list.count and not p.done:
            return LATER
    return LATER if s.sealed or s.size - p.copied > REST_BYTES else 0


cdef int copy_rest(future_t* f) noexcept nogil:
    """Copy what was appended meanwhile; what is known to be on disk must be there in the copy too."""
    cdef log_t* l = f.log
    cdef int status = future_open_active(f)
    if status == 0:
        status = future_copy_range(f, &f.pieces[f.count - 1], l.segments.items[f.count - 1].segment.size)
    if status == 0 and log_durable(l) > f.synced_end:
        status = -EIO if vfs_sync(l.context.fs, P_MOVE_SYNC, f.fd_to) < 0 else 0
        log_dir_trust(f.log_dir, status)
    return status


cdef segment_t* again(log_t* l, segment_t* s, const char* directory) noexcept nogil:
    """A segment with the copied files of another; NULL without memory, or if its transaction index cannot be read."""
    cdef segment_t* copy = segment_new(s.fs, directory, s.base_offset)
    if copy == NULL:
        return NULL
    if damage_copy(s, copy) != 0 or (not s.sealed and segment_copy_aborts(s, copy) != 0):
        segment_free(copy)
        return NULL
    copy.size = copy.reserved = copy.behind = s.size
    copy.end_offset = s.end_offset
    copy.largest_timestamp = load_i64(&s.largest_timestamp)
    copy.largest_offset = load_i64(&s.largest_offset)
    copy.first_timestamp = s.first_timestamp
    copy.modified_ms = s.modified_ms
    copy.since_entry = s.since_entry
    copy.sealed = s.sealed
    copy.aborts_bad |= load_i32(&s.aborts_bad)
    copy.aborts_unread = s.sealed and segment_has_aborts(s)
    copy.open_after = s.open_after
    copy.flushed = s.size if s.sealed else 0
    if load_i32(&s.index_bad):
        copy.index_bad = INDEX_BAD
        store_i32(&l.repair, 1)
    return copy


cdef void next_free(next_t* n) noexcept nogil:
    cdef int64_t i
    for i in range(n.list.count if n.list != NULL else 0):
        segment_free(n.list.items[i].segment)
    segments_free(n.list)
    free(n.path)


cdef int prepare(future_t* f, const char* name, next_t* n) noexcept nogil:
    """Create all that is published, so that nothing fails after the rename. Under both mutexes."""
    cdef log_t* l = f.log
    cdef size_t room = strlen(f.log_dir.path) + strlen(name) + 2
    cdef segment_t* s = NULL
    cdef int64_t i
    n.list = segments_new(l.segments.count + 4)
    n.path = <path_t*>malloc(sizeof(path_t) + room)
    if n.list == NULL or n.path == NULL:
        return -ENOMEM
    if room > PATH_BYTES_MAX:
        return -ENAMETOOLONG
    n.path.text = <char*>(n.path + 1)
    strcpy(n.path.text, f.log_dir.path)
    strcat(strcat(n.path.text, "/"), name)
    for i in range(l.segments.count):
        s = again(l, l.segments.items[i].segment, n.path.text)
        if s == NULL:
            return -ENOMEM
        n.list.items[i].base_offset = s.base_offset
        n.list.items[i].segment = s
        n.list.count += 1
    s.indexes = l.segments.items[l.segments.count - 1].segment.indexes
    add_i32(&s.indexes.refs, 2)  # the segment's, and its files'
    s.files = files_new(s.fs, f.fd_to, s.indexes)
    if s.files == NULL:
        add_i32(&s.indexes.refs, -1)
        return -ENOMEM
    f.fd_to = -1                 # the files have it
    budget_take(&s.fs.budget, True)
    return 0


cdef void publish(future_t* f, next_t* n) noexcept nogil:
    """Make the log consist of the copied files. Under both mutexes."""
    cdef log_t* l = f.log
    cdef segments_t* old = l.segments
    cdef segment_t* active = n.list.items[n.list.count - 1].segment
    cdef int64_t i
    active.indexes.offsets.written = active.indexes.times.written = 0  # there is no index file yet
    n.path.next = l.paths
    l.paths = n.path
    store_ptr(<void**>&l.directory, n.path.text)
    store_ptr(<void**>&l.segments, n.list)
    add_i64(&l.segments_generation, 1)
    for i in range(old.count):
        retire(&l.context.reclaim, old.items[i].segment, segment_free)
    retire(&l.context.reclaim, old, segments_free)
    idle_remove(l)
    store_ptr(<void**>&l.log_dir, f.log_dir)
    idle_add(l)
    l.named = 0
    l.synced_base = 0
    l.snapshots.known = l.snapshots.count = 0
    l.snapshots.offsets[0] = 0
    poke_i64(&l.slow_appends.until_ms, 0)
    poke_i64(&l.slow_reads.until_ms, 0)


cdef int switch_locked(future_t* f, int64_t log_start, const char* name, const char* left, bint* leaves) noexcept nogil:
    """Switch, under both mutexes. `leaves`: the old directory was renamed to `left`."""
    cdef log_t* l = f.log
    cdef log_dir_t* before = l.log_dir
    cdef const char* old = l.directory
    cdef next_t n
    cdef int status = LATER
    n.list, n.path = NULL, NULL
    if log_offline(l) or load_i32(&f.log_dir.failed):
        return KAFKA_STORAGE_ERROR
    if l.view.log_start == log_start:  # else the one on record for the new log dir is too low
        status = check_copied(f)
    if status == 0:
        status = copy_rest(f)
    if status == 0:
        status = prepare(f, name, &n)
    if status == 0:
        status = log_dir_trust(f.log_dir, vfs_rename(l.context.fs, P_MOVE_RENAME, f.directory, n.path.text))
    if status != 0:
        next_free(&n)            # and so the open file, if that has it already
        future_close(f)
        return status
    publish(f, &n)
    leaves[0] = log_dir_trust(before, vfs_rename(l.context.fs, P_MOVE_LEAVE, old, left)) == 0
    return 0


cdef void settle_names(future_t* f, log_dir_t* before) noexcept nogil:
    """Make both renames durable, then remove the mark."""
    cdef char path[PATH_BYTES_MAX + 16]
    cdef log_t* l = f.log
    if log_dir_trust(f.log_dir, vfs_sync_dir(l.context.fs, f.log_dir.path)) != 0:
        return
    if log_dir_trust(before, vfs_sync_dir(l.context.fs, before.path)) != 0:
        return
    snprintf(path, sizeof(path), "%s/switching", l.directory)
    log_dir_trust(f.log_dir, vfs_unlink(l.context.fs, P_NONE, path))


cdef int future_switch(future_t* f, int64_t log_start, const char* name, const char* left) noexcept nogil:
    """Switch a log to its settled copy: 0, LATER if the log has changed meanwhile, a Kafka code or -errno.

    `log_start`: the log start that is on record for the new log dir. `name`: the name of the log's directory; `left`:
    the path that the old one gets."""
    cdef log_t* l = f.log
    cdef log_dir_t* before = l.log_dir
    cdef bint leaves = False
    cdef int64_t began_ns
    cdef int status = LATER
    if not cas_i32(&l.cleaning, 0, 1):
        return LATER             # compaction writes into the directory
    log_lock_files(l)
    if load_i32(&l.deleted):
        status = UNKNOWN_TOPIC_OR_PARTITION
    elif files_beside(l.directory) == f.beside:
        began_ns = monotonic_ns()
        pthread_mutex_lock(&l.append_mutex)
        status = switch_locked(f, log_start, name, left, &leaves)
        pthread_mutex_unlock(&l.append_mutex)
        f.held_us = (monotonic_ns() - began_ns) // 1000
    pthread_mutex_unlock(&l.flush_mutex)
    store_i32(&l.cleaning, 0)
    if status == 0:
        log_wake_flusher(l)
    if leaves:
        backlog_discard(&before.backlog, left, True, peek_i64(&l.settings.file_delete_delay_ms))
        settle_names(f, before)
    return status
