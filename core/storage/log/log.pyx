"""The ordered segments of a partition: the list, the watermarks that readers see, and writes.

An append is O(1): it touches only the active segment. A read is one binary search among segments and one in an index.
Readers take no lock: they are pinned, load the list of segments and the watermarks, and hold the files that they found.
Writers publish: the list by pointer (or by its count, when a roll adds at the end), the watermarks by a seqlock.
"""

from libc.errno cimport ENAMETOOLONG, ENOENT, ENOMEM, ENOTDIR
from libc.stdint cimport INT64_MAX, int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport strcpy, strlen

from pybroker.core.base.atomic cimport (
    add_i32, add_i64, cas_i32, load_i32, load_i64, load_ptr, peek_i64, seq_begin, seq_end, seq_get, seq_read, seq_retry,
    seq_set, store_i32, store_i64, store_ptr,
)
from pybroker.core.base.chain cimport chain_remove
from pybroker.core.base.files cimport iovec
from pybroker.core.base.pthread cimport pthread_mutex_destroy, pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport retire
from pybroker.core.storage.log.backlog cimport backlog_put
from pybroker.core.storage.log.leader_epochs cimport epochs_free
from pybroker.core.storage.log.log_dir cimport log_dir_trust, log_dir_unreadable
from pybroker.core.storage.producers.producer_state cimport sequence_free
from pybroker.core.storage.producers.recent_batches cimport recent_add, recent_forget
from pybroker.core.storage.producers.refused_batches cimport refusals_free
from pybroker.core.storage.producers.transactions cimport (
    transactions_first_open, transactions_first_waiting, transactions_free,
)
from pybroker.core.storage.producers.verifications cimport verifications_free
from pybroker.core.storage.segment.segment cimport (
    segment_free, segment_is_behind, segment_note, segment_t, segment_write,
)

cdef extern from "<assert.h>" nogil:
    void assert_ "assert"(bint holds)  # only in sanitizer builds


# -- watermarks --------------------------------------------------------------------------------------------------------

cdef void log_view(log_t* l, view_t* out) noexcept nogil:
    """Copy the watermarks consistently, as of one moment."""
    cdef uint32_t s
    while True:
        s = seq_read(&l.view_lock)
        out.log_start = seq_get(&l.view.log_start)
        out.last_stable = seq_get(&l.view.last_stable)
        out.high_watermark = seq_get(&l.view.high_watermark)
        out.log_end = seq_get(&l.view.log_end)
        out.active_base = seq_get(&l.view.active_base)
        out.active_size = seq_get(&l.view.active_size)
        if not seq_retry(&l.view_lock, s):
            return


cdef void log_change(log_t* l, view_t* out) noexcept nogil:
    """Begin to change the watermarks: lock them and copy them to `out`; log_publish ends it. Under the append mutex;
    threads without it change only the high watermark and the last stable offset."""
    pthread_mutex_lock(&l.view_mutex)
    out[0] = l.view


cdef inline int64_t last_stable(log_t* l, int64_t log_start, int64_t high_watermark) noexcept nogil:
    """The last stable offset: the beginning of the oldest transaction that is open, or whose marker is not replicated;
    at most the high watermark. Under the view mutex."""
    cdef int64_t first = transactions_first_open(&l.transactions)
    if l.restoring:
        return max(log_start, min(l.view.last_stable, high_watermark))
    first = min(first, transactions_first_waiting(&l.transactions, high_watermark))
    return max(log_start, min(first, high_watermark))


cdef void log_publish(log_t* l, view_t* v) noexcept nogil:
    """Publish new watermarks, all at once; the last stable offset follows from the others."""
    v.last_stable = last_stable(l, v.log_start, v.high_watermark)
    assert_(v.log_start <= v.high_watermark <= v.log_end)
    seq_begin(&l.view_lock)
    seq_set(&l.view.log_start, v.log_start)
    seq_set(&l.view.last_stable, v.last_stable)
    seq_set(&l.view.high_watermark, v.high_watermark)
    seq_set(&l.view.log_end, v.log_end)
    seq_set(&l.view.active_base, v.active_base)
    seq_set(&l.view.active_size, v.active_size)
    seq_end(&l.view_lock)
    pthread_mutex_unlock(&l.view_mutex)


cdef void log_publish_high_watermark(log_t* l, int64_t offset) noexcept nogil:
    """Publish another high watermark, with the last stable offset. Under the view mutex."""
    assert_(l.view.log_start <= offset <= l.view.log_end)
    seq_begin(&l.view_lock)
    seq_set(&l.view.last_stable, last_stable(l, l.view.log_start, offset))
    seq_set(&l.view.high_watermark, offset)
    seq_end(&l.view_lock)


# -- life --------------------------------------------------------------------------------------------------------------

cdef int log_set_directory(log_t* l, const char* directory) noexcept nogil:
    """Set the directory of a log; earlier names stay valid. Under both mutexes, or alone."""
    cdef path_t* path
    if strlen(directory) >= PATH_BYTES_MAX:
        return -ENAMETOOLONG
    path = <path_t*>malloc(sizeof(path_t) + strlen(directory) + 1)
    if path == NULL:
        return -ENOMEM
    path.text = <char*>(path + 1)
    strcpy(path.text, directory)
    path.next = l.paths
    l.paths = path
    store_ptr(<void**>&l.directory, path.text)
    return 0


cdef void log_hold(log_t* l) noexcept nogil:
    add_i32(&l.refs, 1)


cdef void log_drop(log_t* l) noexcept nogil:
    """Release a log; the last release frees it. No reader can be pinned in it then, as readers hold it too."""
    cdef int64_t i
    cdef snapshot_t* p
    cdef path_t* path
    cdef log_dir_t* log_dir
    if add_i32(&l.refs, -1) > 0:
        return
    log_dir = log_dir_of(l)
    pthread_mutex_lock(&log_dir.closing.lock)
    chain_remove(&l.listed)
    pthread_mutex_unlock(&log_dir.closing.lock)
    if l.segments != NULL:
        for i in range(l.segments.count):
            segment_free(l.segments.items[i].segment)
        segments_free(l.segments)
    while l.unwritten != NULL:
        p = l.unwritten
        l.unwritten = p.next
        free(p.data)
        free(p)
    while l.paths != NULL:
        path = l.paths
        l.paths = path.next
        free(path)
    sequence_free(&l.producers)
    transactions_free(&l.transactions)
    verifications_free(&l.verifications)
    refusals_free(&l.refusals)
    epochs_free(&l.epochs)
    pthread_mutex_destroy(&l.append_mutex)
    pthread_mutex_destroy(&l.view_mutex)
    pthread_mutex_destroy(&l.flush_mutex)
    free(l)


cdef void log_wake_flusher(log_t* l) noexcept nogil:
    log_hold(l)
    if not backlog_put(&log_dir_of(l).backlog, &l.work):
        log_drop(l)


cdef int log_trust(log_t* l, int status) noexcept nogil:
    """Return the status of a call that changes files of a log, and take the log dir offline if the disk failed. In a
    deleted log, ENOENT and ENOTDIR are no failure: its directory was renamed."""
    if (status == -ENOENT or status == -ENOTDIR) and load_i32(&l.deleted):
        return status
    return log_dir_trust(log_dir_of(l), status)


cdef int log_note_unread(log_t* l, int status) noexcept nogil:
    """Return the status of a read of a log. A disk error is noted, and the plane then leaves the log's fetches to
    Python, which reads the data before it answers: the client gets an error, instead of a connection that closes in the
    middle of an answer."""
    if status < 0 and log_dir_unreadable(-status):
        cas_i32(&l.unread, 0, -status)
        add_i64(&log_dir_of(l).unread, 1)
    return status


cdef void log_lock_files(log_t* l) noexcept nogil:
    """Take the flush mutex. The flusher, which takes it again and again while a log is busy, lets other threads go
    first."""
    add_i32(&l.waiting, 1)
    pthread_mutex_lock(&l.flush_mutex)
    add_i32(&l.waiting, -1)


cdef int64_t log_sync_due(log_t* l) noexcept nogil:
    """The offset up to which the log must be durable before an acknowledgement; -1: no sync is needed."""
    cdef int64_t every = peek_i64(&l.settings.flush_messages)
    cdef view_t v
    if every == INT64_MAX:
        return -1
    log_view(l, &v)
    return v.log_end if v.log_end - log_durable(l) >= every else -1


cdef bint log_lend(log_t* l, int64_t generation) noexcept nogil:
    """Lend the bytes of a slice: no truncation runs before log_take_back. False if one ran since the slice was
    read."""
    add_i32(&l.lent, 1)
    if load_i64(&l.generation) == generation:
        return True
    log_take_back(l)
    return False


cdef void log_take_back(log_t* l) noexcept nogil:
    add_i32(&l.lent, -1)


# -- the list of segments ----------------------------------------------------------------------------------------------

cdef segments_t* segments_new(int64_t capacity) noexcept nogil:
    cdef segments_t* list = <segments_t*>malloc(sizeof(segments_t) + sizeof(listed_t) * capacity)
    if list != NULL:
        list.count = 0
        list.capacity = capacity
        list.items = <listed_t*>(list + 1)
    return list


cdef void segments_free(void* list) noexcept nogil:
    free(list)


cdef segment_t* log_active(log_t* l) noexcept nogil:
    """The active segment. The caller holds the append mutex."""
    return l.segments.items[l.segments.count - 1].segment


cdef int64_t segments_floor(const segments_t* list, int64_t offset) noexcept nogil:
    """The index of the last segment whose base offset is <= `offset`; -1 if all begin later."""
    cdef int64_t low = 0, high = load_i64(&list.count), middle
    while low < high:
        middle = (low + high) >> 1
        if list.items[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef int log_add_segment(log_t* l, segment_t* s) noexcept nogil:
    """Add a segment at the end of the list. The caller holds the append mutex (or is alone)."""
    cdef segments_t* list = l.segments
    cdef segments_t* larger
    cdef int64_t i
    recent_forget(&l.recent)
    if list == NULL or list.count == list.capacity:
        larger = segments_new(list.capacity * 2 if list != NULL else 4)
        if larger == NULL:
            return -ENOMEM
        if list != NULL:
            for i in range(list.count):
                larger.items[i] = list.items[i]
            larger.count = list.count
        larger.items[larger.count].base_offset = s.base_offset
        larger.items[larger.count].segment = s
        larger.count += 1
        store_ptr(<void**>&l.segments, larger)
        retire(&l.context.reclaim, list, segments_free)
        return 0
    list.items[list.count].base_offset = s.base_offset
    list.items[list.count].segment = s
    store_i64(&list.count, list.count + 1)
    return 0


# -- append ------------------------------------------------------------------------------------------------------------

cdef bint log_is_open(log_t* l) noexcept nogil:
    """True if an append need not open a file. The caller is pinned."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t last = load_i64(&list.count) - 1
    # During a truncation the list may be empty.
    return last < 0 or load_ptr(<void**>&list.items[last].segment.files) != NULL


cdef int log_write(log_t* l, iovec* v, int n, const placed_t* batches, int count, int64_t bytes) noexcept nogil:
    """Write stamped batches at the end in one call; readers do not see them before log_publish.

    The caller holds the append mutex and has rolled if that was due. A full log dir refuses the write: the remaining
    room is for deletions and checkpoints. A failed disk, or a write that could not be undone, takes the log dir
    offline: the next reader of the file would not know which bytes are valid."""
    cdef segment_t* s = log_active(l)
    cdef int64_t position = s.size, before = l.view.log_end - 1
    cdef int i, status = -load_i32(&log_dir_of(l).refusing)
    if status == 0:
        status = log_trust(l, segment_write(s, v, n, bytes))
    if status < 0:
        return status
    for i in range(count):
        segment_note(
            s, position, batches[i].bytes, batches[i].last_offset, batches[i].max_timestamp,
            peek_i64(&l.settings.index_interval_bytes))
        recent_add(
            &l.recent, s.base_offset, position, before, batches[i].last_offset, position + batches[i].bytes)
        before = batches[i].last_offset
        position += batches[i].bytes
    store_i64(&s.size, position)
    if segment_is_behind(s, position, l.context.write_behind_bytes):
        log_wake_flusher(l)
    return 0


# -- read --------------------------------------------------------------------------------------------------------------

cdef int64_t segment_limit(const segment_t* s, const view_t* v) noexcept nogil:
    """The bytes of a segment that readers with this view may see; all bytes of a sealed one."""
    return v.active_size if s.base_offset == v.active_base else load_i64(&s.size)


cdef void log_note_index(log_t* l, const segment_t* s) noexcept nogil:
    """Have the flusher rebuild the indexes of a segment, if a look-up found one bad."""
    if (load_i32(&s.index_bad) or load_i32(&s.aborts_bad)) and not load_i32(&l.repair):
        store_i32(&l.repair, 1)
        log_wake_flusher(l)
