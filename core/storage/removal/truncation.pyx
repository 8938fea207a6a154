"""Truncation: cuts off the log's tail, when a follower's leader has other batches there (KIP-101).

Slices handed out before become void, and the truncation waits for those in use. Files are removed last first, so that a
crash leaves no hole. Both mutexes are held meanwhile: the caller must withdraw the log from the plane first.
"""

from libc.stdint cimport int64_t
from posix.unistd cimport usleep

from pybroker.core.base.atomic cimport add_i64, load_i32, store_i32, store_i64
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport pin, retire, unpin
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.leader_epochs cimport epochs_cut_tail
from pybroker.core.storage.log.log cimport (
    log_active, log_add_segment, log_change, log_lock_files, log_offline, log_publish, log_t, log_wake_flusher,
    segments_floor, segments_free, segments_t, view_t,
)
from pybroker.core.storage.log.log_transactions cimport log_end_restore
from pybroker.core.storage.log.roll cimport log_roll
from pybroker.core.storage.recovery.damage cimport damage_cut
from pybroker.core.storage.recovery.producer_snapshots cimport (
    producers_prune, producers_restore, producers_settle, producers_take,
)
from pybroker.core.storage.recovery.rebuild_aborts cimport rebuild_aborts
from pybroker.core.storage.recovery.reindex cimport segment_reopen, segment_retime
from pybroker.core.storage.removal.retention cimport log_discard_head, log_replace, log_unlist_head
from pybroker.core.storage.segment.index cimport index_cut
from pybroker.core.storage.segment.open_files cimport files_t
from pybroker.core.storage.segment.segment cimport (
    PATH_BYTES, segment_cut, segment_files, segment_free, segment_path, segment_t, segment_unlink,
)
from pybroker.core.storage.segment.segment_aborts cimport segment_copy_aborts
from pybroker.core.storage.segment.segment_search cimport DAMAGED, NOT_FOUND, search_init, search_t, search_to_offset
from pybroker.core.storage.segment.transaction_index cimport aborts_cut, aborts_write

cdef enum:
    LENT_LOOK_US = 50    # between two checks whether slices are still in use (one system call each)


cdef void note_stable(log_t* l) noexcept nogil:
    """Publish the last stable offset again, as the producer state has changed. Under the append mutex."""
    cdef view_t v
    log_end_restore(l)
    log_change(l, &v)
    log_publish(l, &v)


cdef int drop_tail(log_t* l, int64_t keep) noexcept nogil:
    """Remove the segments after index `keep`, which becomes active again. Under both mutexes, pinned.

    The files are removed last first, so that a crash leaves no hole. The segment that becomes the last gets a new
    object: readers keep the sealed one until they leave."""
    cdef segments_t* old = NULL
    cdef segment_t* again = NULL
    cdef int64_t i = l.segments.count - 1
    cdef int status = segment_reopen(l, l.segments.items[keep].segment, &again)
    if status == 0:
        status = segment_copy_aborts(l.segments.items[keep].segment, again)
    while status == 0 and i > keep:
        status = segment_unlink(l.segments.items[i].segment, "")
        i -= 1
    if status == 0:
        status = log_replace(l, keep, l.segments.count - keep, NULL, &old)
    if status == 0:
        status = log_add_segment(l, again)
    if status != 0:
        if again != NULL:
            segment_free(again)
        return status
    for i in range(keep, old.count):
        retire(&l.context.reclaim, old.items[i].segment, segment_free)
    retire(&l.context.reclaim, old, segments_free)
    return 0


cdef int cut_active(log_t* l, int64_t offset, int64_t* end) noexcept nogil:
    """Cut the active segment before the first batch that reaches `offset`; `end` is the log's new end."""
    cdef segment_t* s = log_active(l)
    cdef search_t w
    cdef batch_t b
    cdef files_t* f
    cdef char path[PATH_BYTES]
    cdef int64_t position = 0
    cdef int status = segment_files(s, &f)
    if status < 0:
        return status
    search_init(&w, s, f, s.size)
    status = search_to_offset(&w, offset, &position, &b)
    if status == NOT_FOUND:
        return 0
    if status == 0:
        end[0] = min(offset, b.base_offset)
    if status == 0 or status == DAMAGED:
        status = segment_cut(s, position)
    if status != 0:
        return status
    damage_cut(l, s, position)
    if s.aborts != NULL:
        aborts_cut(s.aborts, offset)
        segment_path(s, ".txnindex", path)
        aborts_write(s.aborts, s.fs, path, False)  # so that its file has nothing past the log's end; else the next does
    index_cut(&s.indexes.offsets, position, offset - s.base_offset)
    index_cut(&s.indexes.times, offset - s.base_offset, (<int64_t>1) << 62)
    return segment_retime(s)


cdef int cut_tail(log_t* l, int64_t offset, int64_t* end) noexcept nogil:
    """Remove every batch that reaches `offset` or beyond; `end` is the log's new end. Under both mutexes."""
    cdef int64_t keep = max(<int64_t>0, segments_floor(l.segments, offset))
    cdef int status = drop_tail(l, keep) if keep + 1 < l.segments.count else 0
    cdef view_t v
    end[0] = offset
    if status == 0:
        status = cut_active(l, offset, end)
    if status != 0:
        return status
    log_change(l, &v)
    v.log_end = max(end[0], v.log_start)
    v.high_watermark = min(v.high_watermark, v.log_end)
    v.active_base = log_active(l).base_offset
    v.active_size = log_active(l).size
    log_publish(l, &v)
    return 0


cdef int truncate_locked(log_t* l, int64_t offset) noexcept nogil:
    cdef int64_t end = offset, gone = 0
    cdef int status = cut_tail(l, offset, &end)
    if status == 0:
        epochs_cut_tail(&l.epochs, end)
        store_i64(&l.recovery_point, min(l.recovery_point, l.view.log_end))
        store_i64(&l.synced, min(l.synced, l.view.log_end))
        producers_settle(l, producers_take(l), end)
        producers_prune(l, end)
        status = producers_restore(l, end)
    if status == 0 and end < l.view.log_start:
        # The batch that held the log start was removed too. Begin a new segment there, as a segment must have no gap.
        status = log_roll(l)
        if status == 0:
            status = log_discard_head(l, l.segments.count - 1, &gone)
        if status == 0:
            status = log_unlist_head(l, gone)
    if status != 0:
        store_i32(&l.offline, 1)
        return KAFKA_STORAGE_ERROR
    note_stable(l)
    if log_active(l).aborts_bad:  # if this fails, readers of committed records wait for the next start
        rebuild_aborts(l, l.segments.count - 1, l.view.log_end)
    return 0


cdef int log_truncate(log_t* l, int64_t offset, may_cut_fn may_cut, void* whose) noexcept nogil:
    """Truncate the log to `offset`, or to the beginning of the batch that holds it. Older slices are void then.

    `may_cut` (NULL: always) is called under the mutex: while the caller waited for it, the reason may have gone."""
    cdef int slot, status = 0
    log_lock_files(l)
    pthread_mutex_lock(&l.append_mutex)
    slot = pin(&l.context.reclaim)
    if load_i32(&l.deleted):
        status = UNKNOWN_TOPIC_OR_PARTITION
    elif log_offline(l):
        status = KAFKA_STORAGE_ERROR
    elif may_cut != NULL:
        status = may_cut(whose)
    if status == 0 and offset < l.view.log_start:
        status = OFFSET_OUT_OF_RANGE
    elif status == 0 and offset < l.view.log_end:
        add_i64(&l.generation, 1)
        while load_i32(&l.lent) > 0:
            usleep(LENT_LOOK_US)
        status = truncate_locked(l, offset)
        add_i64(&l.generation, 1)
    unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.append_mutex)
    pthread_mutex_unlock(&l.flush_mutex)
    log_wake_flusher(l)
    return status
