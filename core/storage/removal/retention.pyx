"""The log's head: the log start, and the removal of segments by retention.

First the log start moves above a segment; then the segment is renamed to .deleted, unlisted, and unlinked after
file.delete.delay.ms; readers go on reading the open file meanwhile. The log start moves before any file is removed, and
never goes back. Files below it that remain after a crash or a disk error are removed by the next round.
"""

from libc.errno cimport EDQUOT, ENOMEM, ENOSPC
from libc.stdint cimport INT64_MAX, int64_t

from pybroker.core.base.atomic cimport add_i64, load_i32, load_i64, load_ptr, peek_i64, store_i32, store_ptr
from pybroker.core.base.error_codes cimport OFFSET_OUT_OF_RANGE
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.reclamation cimport pin, retire, unpin
from pybroker.core.storage.background.flusher cimport log_write_epochs, sync_names
from pybroker.core.storage.log.backlog cimport backlog_discard
from pybroker.core.storage.log.leader_epochs cimport epochs_cut_head
from pybroker.core.storage.log.log cimport (
    CLEANUP_DELETE, log_change, log_lock_files, log_offline, log_publish, log_t, log_trust, log_view, segments_free,
    segments_new, segments_t, snapshot_t, view_t,
)
from pybroker.core.storage.log.offsets_for_times cimport segment_learn
from pybroker.core.storage.log.roll cimport log_keep_snapshot, log_roll_if_still
from pybroker.core.storage.recovery.producer_snapshots cimport producers_settle, producers_take
from pybroker.core.storage.segment.segment cimport (
    INDEX_BAD, PATH_BYTES, segment_free, segment_path, segment_rename, segment_t, segment_unlink,
)
from pybroker.core.storage.segment.segment_aborts cimport segment_has_aborts


cdef int log_discard_files(log_t* l, segment_t* s) noexcept nogil:
    """Rename the files of a segment, and remove them after file.delete.delay.ms."""
    cdef char path[PATH_BYTES]
    cdef int64_t delay_ms = peek_i64(&l.settings.file_delete_delay_ms)
    if delay_ms <= 0 or segment_rename(s, "", ".deleted") < 0:
        return segment_unlink(s, "")
    if segment_has_aborts(s):
        segment_path(s, ".txnindex.deleted", path)
        backlog_discard(&l.log_dir.backlog, path, False, delay_ms)
    segment_path(s, ".timeindex.deleted", path)
    backlog_discard(&l.log_dir.backlog, path, False, delay_ms)
    segment_path(s, ".index.deleted", path)
    backlog_discard(&l.log_dir.backlog, path, False, delay_ms)
    segment_path(s, ".log.deleted", path)
    backlog_discard(&l.log_dir.backlog, path, False, delay_ms)
    return 0


cdef int log_replace(log_t* l, int64_t first, int64_t count, segment_t* fresh, segments_t** old) noexcept nogil:
    """Publish a list with `fresh` (NULL: nothing) in place of `count` segments from index `first`; `old` is the former
    list. Under both mutexes."""
    cdef segments_t* list = l.segments
    cdef segments_t* kept = segments_new(list.count - count + 4)
    cdef int64_t i
    if kept == NULL:
        return -ENOMEM
    for i in range(list.count):
        if i == first and fresh != NULL:
            kept.items[kept.count].base_offset = fresh.base_offset
            kept.items[kept.count].segment = fresh
            kept.count += 1
        if i < first or i >= first + count:
            kept.items[kept.count] = list.items[i]
            kept.count += 1
    old[0] = list
    store_ptr(<void**>&l.segments, kept)
    add_i64(&l.segments_generation, 1)
    return 0


cdef int log_discard_head(log_t* l, int64_t count, int64_t* discarded) noexcept nogil:
    """Remove the files of the first `count` segments, all below the log start. `discarded`: how many are gone for good,
    and may be unlisted. Under the flush mutex, pinned.

    At the first disk error it stops: that segment and the later ones stay listed. So there is never a hole before the
    log start, which is recorded while the first segment is below it; the next round tries again."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t i = 0
    cdef int status = 0, synced
    while status == 0 and i < count:
        status = log_trust(l, log_discard_files(l, list.items[i].segment))
        if status == 0:
            i += 1
        else:
            store_i32(&list.items[i].segment.index_bad, INDEX_BAD)  # its index files may be removed already
    if i > 0:  # else a loss of power could bring them back, when the log start is no longer recorded
        synced = sync_names(l)
        if synced < 0:
            return synced
    discarded[0] = i
    return status


cdef int log_unlist_head(log_t* l, int64_t count) noexcept nogil:
    """Unlist the first `count` segments, whose files are gone; never the active one. Under both mutexes."""
    cdef segments_t* old = NULL
    cdef int64_t i
    cdef int status = log_replace(l, 0, count, NULL, &old) if count > 0 else 0
    if old == NULL:
        return status
    for i in range(count):
        retire(&l.context.reclaim, old.items[i].segment, segment_free)
    retire(&l.context.reclaim, old, segments_free)
    return status


cdef int raise_start(log_t* l, int64_t offset) noexcept nogil:
    """Publish a higher log start. Under the append mutex."""
    cdef view_t v
    if offset <= l.view.log_start:
        return 0
    log_change(l, &v)
    v.log_start = offset
    log_publish(l, &v)
    epochs_cut_head(&l.epochs, offset)
    return 0


cdef int log_set_start(log_t* l, int64_t offset) noexcept nogil:
    """Set the log start to `offset` (-1: the high watermark), for DeleteRecords. Segments wholly below it are removed
    by retention."""
    cdef view_t v
    cdef int status = 0
    pthread_mutex_lock(&l.append_mutex)
    log_view(l, &v)
    if offset == -1:
        offset = v.high_watermark
    if offset < 0 or offset > v.high_watermark:
        status = OFFSET_OUT_OF_RANGE
    else:
        status = raise_start(l, offset)
    pthread_mutex_unlock(&l.append_mutex)
    return status


cdef int64_t expired_head(log_t* l, const segments_t* list, int64_t n, const view_t* v, int64_t now_ms) noexcept nogil:
    """The number of leading segments, out of n, that are past retention by start, time or size. May read the disk:
    under the flush mutex alone, pinned."""
    cdef segment_t* s
    cdef int64_t i, total = 0, largest, gone = 0
    cdef int64_t retention_ms = peek_i64(&l.settings.retention_ms)
    cdef int64_t retention_bytes = peek_i64(&l.settings.retention_bytes)
    cdef bint by_policy = (peek_i64(&l.settings.cleanup_policy) & CLEANUP_DELETE) != 0
    for i in range(n):
        total += load_i64(&list.items[i].segment.size)
    for i in range(n):
        s = list.items[i].segment
        # Uncommitted segments stay. The last segment counts only if it has data, as it must be rolled first.
        if (list.items[i + 1].base_offset if i + 1 < n else v.log_end) > v.high_watermark:
            break
        if i + 1 == n and load_i64(&s.size) == 0:
            break
        if i + 1 < n and list.items[i + 1].base_offset <= v.log_start:
            gone = i + 1
            total -= load_i64(&s.size)
            continue
        if not by_policy:
            break
        if segment_learn(s) != 0:
            break
        largest = load_i64(&s.largest_timestamp)
        if largest < 0:
            largest = s.modified_ms
        if retention_ms >= 0 and now_ms - largest > retention_ms:
            gone = i + 1
        elif retention_bytes >= 0 and total - load_i64(&s.size) >= retention_bytes:
            gone = i + 1
        else:
            break
        total -= load_i64(&s.size)
    return gone


cdef bint has_snapshot(const log_t* l, int64_t offset) noexcept nogil:
    """True if a producer snapshot at `offset` or later is in the directory, as far as is known; the one of a roll is
    lost if the broker is killed just after it. Under the flush mutex."""
    return l.snapshots.known and l.snapshots.count > 0 and l.snapshots.offsets[0] >= offset


cdef int retain_locked(log_t* l, int64_t now_ms, int64_t* deleted) noexcept nogil:
    """Do the work of log_retain, under the flush mutex, pinned."""
    cdef segments_t* list
    cdef snapshot_t* snapshots
    cdef view_t v
    cdef int64_t n, gone
    cdef bint rolled = False
    cdef int unlisted, status = 0
    log_view(l, &v)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    n = load_i64(&list.count)
    # Not for an offline log: a failed swap may have left files whose names differ from its list.
    gone = expired_head(l, list, n, &v, now_ms) if not load_i32(&l.deleted) and not log_offline(l) else 0
    if gone > 0 and gone == n:
        status = log_roll_if_still(l, v.log_end, &rolled)
        gone -= not rolled       # records appended meanwhile keep the last segment
    if status != 0 or gone == 0:
        return status
    pthread_mutex_lock(&l.append_mutex)
    raise_start(l, l.segments.items[gone].base_offset)
    if l.producers.count > 0 and not has_snapshot(l, l.segments.items[gone].base_offset):
        status = log_keep_snapshot(l)
    snapshots = producers_take(l)
    pthread_mutex_unlock(&l.append_mutex)
    if status != 0:
        return status
    producers_settle(l, snapshots, INT64_MAX)  # the batches with the same information are about to be removed
    status = log_write_epochs(l)  # before the removal: else after a crash the first segment would seem to be missing
    if status == -ENOSPC or status == -EDQUOT:
        status = 0               # the removal makes room
    if status == 0:
        status = log_discard_head(l, gone, deleted)
    if status == 0:
        status = log_write_epochs(l)
    pthread_mutex_lock(&l.append_mutex)
    unlisted = log_unlist_head(l, deleted[0])
    pthread_mutex_unlock(&l.append_mutex)
    return status if status != 0 else unlisted


cdef int log_retain(log_t* l, int64_t now_ms, int64_t* deleted) noexcept nogil:
    """Delete whole segments past retention; if all of them are, the active one is rolled first and deleted too.

    Appends wait for no file call: no thread reads below the log start."""
    cdef int slot, status
    deleted[0] = 0
    log_lock_files(l)            # so that no flush meets a removed file
    slot = pin(&l.context.reclaim)
    status = retain_locked(l, now_ms, deleted)
    unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.flush_mutex)
    return status
