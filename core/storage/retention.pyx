"""The log's head and tail: where it starts, what retention removes, what a truncation cuts.

A segment that leaves lies below the log start first, is then renamed to .deleted, unlisted, and unlinked after
file.delete.delay.ms; who reads it meanwhile goes on reading the open file. The log start moves before anything is
removed and never goes back: what a crash, or a disk that refuses, leaves below it goes with the next round.
"""

from libc.errno cimport EDQUOT, ENOMEM, ENOSPC
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free
from posix.unistd cimport usleep

from pybroker.core.base.atomic cimport add_i64, load_i32, load_i64, load_ptr, peek_i64, store_i32, store_i64, store_ptr
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION
from pybroker.core.base.reclamation cimport pin, pthread_mutex_lock, pthread_mutex_unlock, retire, unpin
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.backlog cimport backlog_discard
from pybroker.core.storage.damage cimport damage_cut
from pybroker.core.storage.flusher cimport log_write_epochs, sync_names
from pybroker.core.storage.index cimport index_cut
from pybroker.core.storage.leader_epochs cimport epochs_cut_head, epochs_cut_tail
from pybroker.core.storage.log cimport (
    CLEANUP_DELETE, log_active, log_add_segment, log_lock_files, log_offline, log_publish, log_t, log_trust, log_view,
    log_wake_flusher, segments_floor, segments_free, segments_new, segments_t, snapshot_t, view_t,
)
from pybroker.core.storage.offsets_for_times cimport segment_learn
from pybroker.core.storage.open_files cimport files_t
from pybroker.core.storage.producer_snapshots cimport producers_prune, producers_restore, producers_write
from pybroker.core.storage.producer_state cimport sequence_first_open
from pybroker.core.storage.reindex cimport segment_reopen, segment_retime
from pybroker.core.storage.roll cimport log_roll, log_roll_if_still
from pybroker.core.storage.segment cimport (
    PATH_BYTES, segment_cut, segment_files, segment_free, segment_path, segment_rename, segment_t, segment_unlink,
)
from pybroker.core.storage.segment_search cimport DAMAGED, NOT_FOUND, search_init, search_t, search_to_offset

cdef enum:
    LENT_LOOK_US = 50    # between two looks whether slices are still in use: one call to the system each

cdef void log_note_stable(log_t* l) noexcept nogil:
    """Recompute the last stable offset from open transactions and the high watermark. Under the append mutex."""
    cdef view_t v = l.view
    cdef int64_t first = sequence_first_open(&l.producers)
    v.last_stable = v.high_watermark if first < 0 or first > v.high_watermark else first
    log_publish(l, &v)


cdef int log_discard_files(log_t* l, segment_t* s) noexcept nogil:
    """Take the files of a segment out of the way, and remove them after file.delete.delay.ms."""
    cdef char path[PATH_BYTES]
    cdef int64_t delay_ms = peek_i64(&l.settings.file_delete_delay_ms)
    if delay_ms <= 0 or segment_rename(s, "", ".deleted") < 0:
        return segment_unlink(s, "")
    segment_path(s, ".timeindex.deleted", path)
    backlog_discard(&l.log_dir.backlog, path, False, delay_ms)
    segment_path(s, ".index.deleted", path)
    backlog_discard(&l.log_dir.backlog, path, False, delay_ms)
    segment_path(s, ".log.deleted", path)
    backlog_discard(&l.log_dir.backlog, path, False, delay_ms)
    return 0


cdef int log_replace(log_t* l, int64_t first, int64_t count, segment_t* fresh, segments_t** old) noexcept nogil:
    """Publish a list with `fresh` (NULL: nothing) in place of `count` segments from number `first`; `old` still names
    them. Under both mutexes."""
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
    add_i64(&l.edition, 1)
    return 0


cdef int discard_head(log_t* l, int64_t count, int64_t* discarded) noexcept nogil:
    """Remove the files of the first `count` segments, all below the log start; how many are gone for good, and may be
    unlisted. Under the flush mutex, pinned.

    The first that the disk refuses to let go of ends it: it stays listed, as do those behind it. So there is never a
    hole before the log start, which is on record while the first segment lies below it, and the next round tries
    again."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t i = 0
    cdef int status = 0, synced
    while status == 0 and i < count:
        status = log_trust(l, log_discard_files(l, list.items[i].segment))
        if status == 0:
            i += 1
        else:
            store_i32(&list.items[i].segment.index_bad, 1)  # they may be gone
    if i > 0:  # or they come back with a loss of power, when nothing tells the log start any more
        synced = sync_names(l)
        if synced < 0:
            return synced
    discarded[0] = i
    return status


cdef int unlist_head(log_t* l, int64_t count) noexcept nogil:
    """Unlist the first `count` segments, whose files are gone. Under both mutexes; the active one is never among
    them."""
    cdef segments_t* old = NULL
    cdef int64_t i
    cdef int status = log_replace(l, 0, count, NULL, &old) if count > 0 else 0
    if old == NULL:
        return status
    for i in range(count):
        retire(&l.context.reclaim, old.items[i].segment, segment_free)
    retire(&l.context.reclaim, old, segments_free)
    return status


cdef snapshot_t* take_pending(log_t* l) noexcept nogil:
    """The snapshots that wait to be written. Under the append mutex."""
    cdef snapshot_t* p = l.unwritten
    l.unwritten = NULL
    return p


cdef void settle_snapshots(log_t* l, snapshot_t* p, int64_t end) noexcept nogil:
    """Write snapshots that waited for it, but for those of what lies past `end`. Under the flush mutex.

    One that cannot be written is missed only where the batches before it are gone as well."""
    cdef snapshot_t* after
    while p != NULL:
        after = p.next
        if p.offset <= end:
            producers_write(l, p, True)
        free(p.data)
        free(p)
        p = after


cdef int raise_start(log_t* l, int64_t offset) noexcept nogil:
    """Publish a higher log start. Under the append mutex."""
    cdef view_t v = l.view
    if offset <= v.log_start:
        return 0
    v.log_start = offset
    if v.last_stable < offset:
        v.last_stable = offset
    log_publish(l, &v)
    epochs_cut_head(&l.epochs, offset)
    return 0


cdef int log_set_start(log_t* l, int64_t offset) noexcept nogil:
    """DeleteRecords: the log starts at `offset` (-1: the high watermark). Segments wholly below it go with
    retention."""
    cdef int status = 0
    pthread_mutex_lock(&l.append_mutex)
    if offset == -1:
        offset = l.view.high_watermark
    if offset < 0 or offset > l.view.high_watermark:
        status = OFFSET_OUT_OF_RANGE
    else:
        status = raise_start(l, offset)
    pthread_mutex_unlock(&l.append_mutex)
    return status


cdef int64_t expired_head(log_t* l, const segments_t* list, int64_t n, const view_t* v, int64_t now_ms) noexcept nogil:
    """How many of the first of n segments are past retention by start, time or size. It may read the disk: under the
    flush mutex alone, pinned."""
    cdef segment_t* s
    cdef int64_t i, total = 0, largest, gone = 0
    cdef int64_t retention_ms = peek_i64(&l.settings.retention_ms)
    cdef int64_t retention_bytes = peek_i64(&l.settings.retention_bytes)
    cdef bint by_policy = (peek_i64(&l.settings.cleanup_policy) & CLEANUP_DELETE) != 0
    for i in range(n):
        total += load_i64(&list.items[i].segment.size)
    for i in range(n):
        s = list.items[i].segment
        # What is not committed stays; the last segment counts only if it could be rolled away, that is, if it has data.
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


cdef int retain_locked(log_t* l, int64_t now_ms, int64_t* deleted) noexcept nogil:
    """What log_retain does under the flush mutex, pinned."""
    cdef segments_t* list
    cdef snapshot_t* snapshots
    cdef view_t v
    cdef int64_t n, gone
    cdef bint rolled = False
    cdef int unlisted, status = 0
    log_view(l, &v)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    n = load_i64(&list.count)
    # The names of an offline log's files may be others than its list says: a swap that failed left them so.
    gone = expired_head(l, list, n, &v, now_ms) if not load_i32(&l.deleted) and not log_offline(l) else 0
    if gone > 0 and gone == n:
        status = log_roll_if_still(l, v.log_end, &rolled)
        gone -= not rolled       # what came meanwhile keeps its segment
    if status != 0 or gone == 0:
        return status
    pthread_mutex_lock(&l.append_mutex)
    raise_start(l, l.segments.items[gone].base_offset)
    snapshots = take_pending(l)
    pthread_mutex_unlock(&l.append_mutex)
    settle_snapshots(l, snapshots, INT64_MAX)  # the batches that tell the same are about to go
    status = log_write_epochs(l)  # or a crash leaves a log that seems to lack its first segment
    if status == -ENOSPC or status == -EDQUOT:
        status = 0               # what goes makes room for it
    if status == 0:
        status = discard_head(l, gone, deleted)
    if status == 0:
        status = log_write_epochs(l)
    pthread_mutex_lock(&l.append_mutex)
    unlisted = unlist_head(l, deleted[0])
    pthread_mutex_unlock(&l.append_mutex)
    return status if status != 0 else unlisted


cdef int log_retain(log_t* l, int64_t now_ms, int64_t* deleted) noexcept nogil:
    """Delete whole segments past retention; if that is all of them, the active one is rolled first and goes too.

    Appends wait for no file: what is decided and removed here is not theirs, for nobody looks below the log start."""
    cdef int slot, status
    deleted[0] = 0
    log_lock_files(l)            # no flush meets a file that is gone
    slot = pin(&l.context.reclaim)
    status = retain_locked(l, now_ms, deleted)
    unpin(&l.context.reclaim, slot)
    pthread_mutex_unlock(&l.flush_mutex)
    return status


cdef int drop_tail(log_t* l, int64_t keep) noexcept nogil:
    """Remove the segments after number `keep`, which is active again. Under both mutexes, pinned.

    The files go last first, so that a crash leaves no hole. The segment that becomes the last is replaced as well:
    readers keep the sealed object until they leave."""
    cdef segments_t* old = NULL
    cdef segment_t* again = NULL
    cdef int64_t i = l.segments.count - 1
    cdef int status = segment_reopen(l, l.segments.items[keep].segment, &again)
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
    """Cut the active segment before the first batch that reaches `offset`; `end` is where the log then ends."""
    cdef segment_t* s = log_active(l)
    cdef search_t w
    cdef batch_t b
    cdef files_t* f
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
    index_cut(&s.indexes.offsets, position, offset - s.base_offset)
    index_cut(&s.indexes.times, offset - s.base_offset, (<int64_t>1) << 62)
    return segment_retime(s)


cdef int cut_tail(log_t* l, int64_t offset, int64_t* end) noexcept nogil:
    """Remove every batch that reaches `offset` or beyond; `end` is where the last one left ends. Under both mutexes."""
    cdef int64_t keep = max(<int64_t>0, segments_floor(l.segments, offset))
    cdef int status = drop_tail(l, keep) if keep + 1 < l.segments.count else 0
    cdef view_t v
    end[0] = offset
    if status == 0:
        status = cut_active(l, offset, end)
    if status != 0:
        return status
    v = l.view
    v.log_end = max(end[0], v.log_start)
    v.high_watermark = min(v.high_watermark, v.log_end)
    v.last_stable = min(v.last_stable, v.log_end)
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
        settle_snapshots(l, take_pending(l), end)
        producers_prune(l, end)
        status = producers_restore(l, end)
    if status == 0 and end < l.view.log_start:
        # The batch that held the log start went too. Begin anew there: within a segment, offsets have no gaps.
        status = log_roll(l)
        if status == 0:
            status = discard_head(l, l.segments.count - 1, &gone)
        if status == 0:
            status = unlist_head(l, gone)
    if status != 0:
        store_i32(&l.offline, 1)
        return KAFKA_STORAGE_ERROR
    log_note_stable(l)
    return 0


cdef int log_truncate(log_t* l, int64_t offset) noexcept nogil:
    """Cut the log's end back to `offset`, or to where the batch begins that holds it. Older slices are void then."""
    cdef int slot, status = 0
    log_lock_files(l)
    pthread_mutex_lock(&l.append_mutex)
    slot = pin(&l.context.reclaim)
    if load_i32(&l.deleted):
        status = UNKNOWN_TOPIC_OR_PARTITION
    elif log_offline(l):
        status = KAFKA_STORAGE_ERROR
    elif offset < l.view.log_start:
        status = OFFSET_OUT_OF_RANGE
    elif offset < l.view.log_end:
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
