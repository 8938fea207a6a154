"""Replacing segments by the cleaned one that was made of them, so that a crash leaves either the old ones or the new
one.

    <base>.log.cleaned   being written: a start removes it
    <base>.log.swap      complete and on disk: a start removes the segments that it replaces, those whose base offset
                         lies in it, and gives it its final name. The rename from .cleaned to .swap decides; the data
                         file is renamed last, after the indexes.

These are Kafka's names and rules (LogLoader.scala), so each can finish what the other began. The last batch of the
replaced segments is always kept, at least as a header, so that a .swap covers the offsets of all segments that it
replaces.

Readers look up no file by name while names change: replaced segments are opened first, and stay open until their
readers have left.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i32, load_i64, load_ptr, store_i32
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport pin, retire, unpin
from pybroker.core.base.vfs cimport vfs_sync_dir
from pybroker.core.batch.batch cimport batch_last_offset, batch_t
from pybroker.core.storage.log.log cimport log_lock_files, log_offline, log_t, log_trust, segments_free, segments_t
from pybroker.core.storage.removal.retention cimport log_discard_files, log_replace
from pybroker.core.storage.segment.open_files cimport files_t
from pybroker.core.storage.segment.segment cimport (
    segment_files, segment_free, segment_new, segment_open, segment_rename, segment_t, segment_unlink,
)
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND, search_init, search_t, search_to_last


cdef int open_all(segments_t* list, int64_t first, int64_t count) noexcept nogil:
    """Open the segments to replace. Under the flush mutex, so that none is closed again."""
    cdef files_t* f
    cdef int64_t i
    cdef int status = 0
    for i in range(first, first + count):
        if status == 0:
            status = segment_files(list.items[i].segment, &f)
    return status


cdef int decide(log_t* l, segment_t* fresh) noexcept nogil:
    """Rename from .cleaned to .swap. On failure both are removed."""
    cdef int status = segment_rename(fresh, ".cleaned", ".swap")
    if status == 0:
        status = vfs_sync_dir(l.context.fs, l.directory)
    if status != 0:
        segment_unlink(fresh, ".swap")
        segment_unlink(fresh, ".cleaned")
    return log_trust(l, status)


cdef int change_names(log_t* l, segments_t* list, int64_t first, int64_t count, segment_t* fresh) noexcept nogil:
    cdef int64_t i
    cdef int status = 0
    for i in range(first, first + count):
        if status == 0:
            status = log_discard_files(l, list.items[i].segment)
    if status == 0:
        status = segment_rename(fresh, ".swap", "")
    if status == 0:
        status = vfs_sync_dir(l.context.fs, l.directory)
    return log_trust(l, status)


cdef int list_fresh(log_t* l, int64_t first, int64_t count, segment_t* fresh) noexcept nogil:
    cdef segments_t* old = NULL
    cdef int64_t i
    cdef int status
    pthread_mutex_lock(&l.append_mutex)
    status = log_replace(l, first, count, fresh, &old)
    pthread_mutex_unlock(&l.append_mutex)
    if status != 0:
        return status
    for i in range(first, first + count):
        retire(&l.context.reclaim, old.items[i].segment, segment_free)
    retire(&l.context.reclaim, old, segments_free)
    return 0


cdef int replace_locked(log_t* l, int64_t generation, int64_t first, int64_t count, segment_t* fresh) noexcept nogil:
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int status = CHANGED
    if load_i64(&l.segments_generation) == generation and not load_i32(&l.deleted) and not log_offline(l):
        status = open_all(list, first, count)
    if status != 0:
        segment_unlink(fresh, ".cleaned")
        return status
    status = decide(l, fresh)
    if status != 0:
        return status
    status = change_names(l, list, first, count, fresh)
    if status == 0:
        status = list_fresh(l, first, count, fresh)
    if status != 0:
        store_i32(&l.offline, 1)  # the listed segments have lost their names; a start finishes the swap
        return KAFKA_STORAGE_ERROR
    return 0


cdef int replace_segments(log_t* l, int64_t generation, int64_t first, int64_t count, segment_t* fresh) noexcept nogil:
    """Replace `count` segments from index `first` by `fresh`, whose files are on disk as .cleaned.

    CHANGED if the generation of the list has changed. The log owns `fresh` only after 0; after a failure its files are
    removed."""
    cdef int slot, status
    log_lock_files(l)
    slot = pin(&l.context.reclaim)
    status = replace_locked(l, generation, first, count, fresh)
    unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.flush_mutex)
    return status


# -- at start ----------------------------------------------------------------------------------------------------------

cdef int reach(segment_t* swap, int64_t* end) noexcept nogil:
    """Find the offset after the last batch of a .swap, if it has only complete batches."""
    cdef search_t w
    cdef batch_t b
    cdef int64_t position = 0
    cdef int status = segment_open(swap, ".swap", True)
    end[0] = swap.base_offset
    if status != 0:
        return status
    search_init(&w, swap, swap.files, swap.size)
    status = search_to_last(&w, &position, &b)
    if status == 0:
        end[0] = batch_last_offset(&b) + 1
    return 0 if status == NOT_FOUND else status


cdef int finish(log_t* l, segment_t* swap, const int64_t* bases, int64_t n) noexcept nogil:
    cdef segment_t gone
    cdef int64_t i, end = 0
    cdef bint replaces = False
    cdef int status = reach(swap, &end)
    for i in range(n):
        replaces |= bases[i] == swap.base_offset
    if (status > 0 or (status == 0 and end == swap.base_offset)) and replaces:
        return segment_unlink(swap, ".swap")  # it is invalid or empty, and the segment that it would replace exists
    if status < 0:
        return status
    gone.fs, gone.directory = swap.fs, swap.directory
    for i in range(n):
        if swap.base_offset < bases[i] < end:
            gone.base_offset = bases[i]
            status = segment_unlink(&gone, "")
            if status < 0:
                return status
    status = segment_rename(swap, ".swap", "")
    return status if status != 0 else vfs_sync_dir(l.context.fs, l.directory)


cdef int replace_finish(log_t* l, int64_t base, const int64_t* bases, int64_t n) noexcept nogil:
    """Finish a swap at start, among the segments with these base offsets. The caller is the only thread."""
    cdef segment_t* swap = segment_new(l.context.fs, l.directory, base)
    cdef int status
    if swap == NULL:
        return -ENOMEM
    status = finish(l, swap, bases, n)
    segment_free(swap)
    return status
