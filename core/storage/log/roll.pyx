"""The roll of a log: when the next segment is due, and how it is created and listed.

Its file is created first. Then, under the append mutex, a producer snapshot is queued for the flusher, and the segment
is listed: appends go to it from then on, and the flusher seals the one before.
"""

from libc.errno cimport EEXIST, ENOMEM
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, rand

from pybroker.core.base.atomic cimport load_i32, load_i64, peek_i64, poke_i64
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.vfs cimport P_ROLL_AFTER, P_ROLL_BEFORE, vfs_pass
from pybroker.core.storage.log.log cimport (
    log_active, log_add_segment, log_change, log_offline, log_publish, log_t, log_trust, log_wake_flusher,
    segments_floor, snapshot_t, view_t,
)
from pybroker.core.storage.producers.producer_state cimport sequence_save
from pybroker.core.storage.producers.transactions cimport transactions_first_open
from pybroker.core.storage.segment.index cimport OFFSET_ENTRY, TIME_ENTRY
from pybroker.core.storage.segment.segment cimport (
    segment_claim, segment_create, segment_free, segment_new, segment_t, segment_unlink,
)


cdef bint log_must_roll(
    log_t* l, int64_t bytes, int64_t last_offset, int64_t max_timestamp, int64_t now_ms) noexcept nogil:
    """True if a batch of `bytes` that ends at last_offset needs a new segment. Kafka's rules, in Kafka's order."""
    cdef segment_t* s = log_active(l)
    cdef int64_t waited
    if s.size + bytes > peek_i64(&l.settings.segment_bytes) and s.size > 0:
        return True
    if s.size > 0:
        waited = now_ms - s.modified_ms
        if s.first_timestamp >= 0:
            waited = max(max_timestamp, <int64_t>-1) - s.first_timestamp
        if waited > peek_i64(&l.settings.segment_ms) - l.roll_jitter_ms:
            return True
        if (load_i64(&s.indexes.offsets.count) + 1) * OFFSET_ENTRY > peek_i64(&l.settings.segment_index_bytes):
            return True
        # One more time entry, which the seal adds.
        if (load_i64(&s.indexes.times.count) + 2) * TIME_ENTRY > peek_i64(&l.settings.segment_index_bytes):
            return True
    return last_offset - s.base_offset > SEGMENT_SPAN_MAX


cdef int log_keep_snapshot(log_t* l) noexcept nogil:
    """Queue a producer snapshot at the log's end, which the flusher writes."""
    cdef snapshot_t* p
    cdef int status
    if l.segments == NULL:
        return 0
    p = <snapshot_t*>calloc(1, sizeof(snapshot_t))
    if p == NULL:
        return -ENOMEM
    status = sequence_save(&l.producers, &p.data, &p.length)
    if status < 0:
        free(p)
        return status
    p.offset = l.view.log_end
    p.next = l.unwritten
    l.unwritten = p
    return 0


cdef int make_next(log_t* l, int64_t base_offset, bint alone, segment_t** out) noexcept nogil:
    """Create the file of the next segment; `alone`: -EEXIST if it exists. A failure leaves no file."""
    cdef segment_t* s
    cdef int status = vfs_pass(l.context.fs, P_ROLL_BEFORE, l.directory)
    if status < 0:
        return status
    s = segment_new(l.context.fs, l.directory, base_offset)
    if s == NULL:
        return -ENOMEM
    status = segment_claim(s) if alone else segment_create(s, "")
    if status == 0:
        status = vfs_pass(l.context.fs, P_ROLL_AFTER, l.directory)
    if status < 0:
        drop_next(s)
        return status if status == -EEXIST else log_trust(l, status)
    out[0] = s
    return 0


cdef void drop_next(segment_t* s) noexcept nogil:
    """Undo make_next: else an empty file would have an offset in the middle of the active segment."""
    if s.files != NULL:
        segment_unlink(s, "")
    segment_free(s)


cdef int list_next(log_t* l, segment_t* s) noexcept nogil:
    """List a segment that was created for the log's end, so that appends go to it; the flusher seals the one before.
    Under the append mutex."""
    cdef view_t v
    cdef int64_t jitter_ms = peek_i64(&l.settings.segment_jitter_ms)
    cdef int status = log_keep_snapshot(l)
    if status == 0:
        if l.segments != NULL and l.segments.count > 0:
            log_active(l).end_offset = l.view.log_end
            poke_i64(&log_active(l).open_after, transactions_first_open(&l.transactions))
        status = log_add_segment(l, s)
    if status < 0:
        return status
    l.roll_jitter_ms = rand() % jitter_ms if jitter_ms > 0 else 0
    log_change(l, &v)
    v.active_base = s.base_offset
    v.active_size = 0
    log_publish(l, &v)
    log_wake_flusher(l)
    return 0


cdef int log_roll(log_t* l) noexcept nogil:
    """Begin a new active segment for an append that needs one. The caller holds the append mutex."""
    cdef segment_t* s = NULL
    cdef int status = make_next(l, l.view.log_end, False, &s)
    if status == 0:
        status = list_next(l, s)
        if status < 0:
            drop_next(s)
    return status


cdef int log_roll_if_still(log_t* l, int64_t end, bint* rolled) noexcept nogil:
    """Begin a new active segment if the log still ends at `end`; no append waits for its file to be created. Under the
    flush mutex.

    A crash in between may leave an empty file with an offset inside the segment before it; a start removes it."""
    cdef segment_t* s = NULL
    cdef bint taken
    cdef int status = make_next(l, end, True, &s)
    rolled[0] = False
    if status < 0:
        return 0 if status == -EEXIST else status  # an append has rolled at the same offset
    pthread_mutex_lock(&l.append_mutex)
    taken = log_active(l).base_offset >= end and l.segments.items[segments_floor(l.segments, end)].base_offset == end
    if not taken and l.view.log_end == end and not load_i32(&l.deleted) and not log_offline(l):
        status = list_next(l, s)
        rolled[0] = status == 0
    pthread_mutex_unlock(&l.append_mutex)
    if taken:
        segment_free(s)          # an append has rolled, and uses the file
    elif not rolled[0]:
        drop_next(s)
    return status
