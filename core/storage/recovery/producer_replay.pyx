"""The replay of a part of a log: producers and transactions are a function of batch headers and markers.

Only headers are read, and the few bytes of each marker. A segment that turns out to be damaged is searched for its bad
spots first.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memset

from pybroker.core.base.atomic cimport load_i64, load_ptr
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.batch.batch cimport CONTROL, batch_last_offset, batch_t
from pybroker.core.batch.marker cimport MARKER_BODY_MAX
from pybroker.core.storage.log.log cimport log_t, segments_floor, segments_t
from pybroker.core.storage.log.log_transactions cimport change_apply, change_t, log_note_changes, producers_see
from pybroker.core.storage.producers.producer_state cimport sequence_t
from pybroker.core.storage.producers.transactions cimport (
    transactions_free, transactions_swap_waiting, transactions_t, transactions_take,
)
from pybroker.core.storage.recovery.damage cimport damage_search
from pybroker.core.storage.segment.open_files cimport files_t
from pybroker.core.storage.segment.segment cimport segment_files, segment_t
from pybroker.core.storage.segment.segment_search cimport (
    DAMAGED, NOT_FOUND, search_body, search_header, search_init, search_t, search_to_offset,
)


cdef int see(replay_t* r, search_t* w, int64_t position, const batch_t* b) noexcept nogil:
    """Update the state with a batch that is in the log."""
    cdef uint8_t body[MARKER_BODY_MAX]
    cdef segment_t* indexed
    cdef change_t change
    cdef size_t n = 0
    cdef int status = 0
    if b.producer_id < 0:
        return 0
    if b.attributes & CONTROL:
        status = search_body(w, position, b, body, &n)
    if status == 0:
        status = producers_see(r.producers, b, body, n, &change)
    if status == 0 and r.transactions == &r.log.transactions:
        status = log_note_changes(r.log, NULL, &change, 1)
    elif status == 0 and r.transactions != NULL:
        indexed = r.indexed if r.indexed != NULL and b.base_offset >= r.indexed.base_offset else NULL
        status = change_apply(r.transactions, indexed, &change, r.high_watermark)
    return status


cdef int replay_segment(replay_t* r, segment_t* s, int64_t* start, int64_t end) noexcept nogil:
    """Replay a segment's batches from the one that holds `start` up to offset `end`; `start` moves with them."""
    cdef files_t* f
    cdef search_t w
    cdef batch_t b
    cdef int64_t position = 0
    cdef int status = segment_files(s, &f)
    if status < 0:
        return status
    search_init(&w, s, f, load_i64(&s.size))
    status = search_to_offset(&w, start[0], &position, &b)
    if status == DAMAGED:
        status = search_header(&w, &position, &b)
    while status == 0 and b.base_offset < end:
        status = see(r, &w, position, &b)
        if status < 0:
            return status
        start[0] = batch_last_offset(&b) + 1
        position += b.size
        status = search_header(&w, &position, &b)
    return 0 if status == NOT_FOUND else status


cdef int replay(replay_t* r, int64_t start, int64_t end) noexcept nogil:
    """Replay the batches from the one that holds `start` up to offset `end`. No other thread changes these segments."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&r.log.segments)
    cdef segment_t* s
    cdef int64_t next_base, behind, i = max(<int64_t>0, segments_floor(list, start))
    cdef int status = 0
    while i < load_i64(&list.count) and list.items[i].base_offset < end:
        s = list.items[i].segment
        status = replay_segment(r, s, &start, end)
        if status == CORRUPT_MESSAGE and r.indexed == NULL:
            next_base = list.items[i + 1].base_offset if i + 1 < list.count else end
            status = damage_search(r.log, s, next_base, INT64_MAX, False, &behind)
            if status == 0:
                status = replay_segment(r, s, &start, end)
        if status != 0:
            return status
        i += 1
    return 0


cdef bint replay_has_marker(log_t* l, int64_t start, int64_t end) noexcept nogil:
    """True if a control batch lies in [start, end), or if that cannot be read."""
    cdef segments_t* list = l.segments
    cdef files_t* f
    cdef search_t w
    cdef batch_t b
    cdef int64_t i, position
    cdef int status = NOT_FOUND
    for i in range(max(<int64_t>0, segments_floor(list, start)), list.count if start < end else 0):
        if segment_files(list.items[i].segment, &f) < 0:
            return True
        search_init(&w, list.items[i].segment, f, load_i64(&list.items[i].segment.size))
        position = 0
        status = search_to_offset(&w, start, &position, &b)
        while status == 0 and b.base_offset < end:
            if b.attributes & CONTROL:
                return True
            position += b.size
            status = search_header(&w, &position, &b)
        if status != NOT_FOUND:
            return status != 0
    return False


cdef int replay_waiting(log_t* l, int64_t start, int64_t end, sequence_t* from_) noexcept nogil:
    """Find the transactions that end in [start, end), at or above the high watermark, with the producers as of `start`,
    which change. They are the log's first waiting ones."""
    cdef transactions_t found
    cdef replay_t r
    cdef int status
    memset(&found, 0, sizeof(found))
    r.log, r.producers, r.transactions, r.indexed = l, from_, &found, NULL
    r.high_watermark = l.view.high_watermark
    status = transactions_take(&found, from_)
    if status == 0:
        status = replay(&r, start, end)
    if status == 0:
        pthread_mutex_lock(&l.view_mutex)
        transactions_swap_waiting(&l.transactions, &found)
        pthread_mutex_unlock(&l.view_mutex)
    transactions_free(&found)
    return status


cdef int replay_log(log_t* l, int64_t start, int64_t end) noexcept nogil:
    """Replay the batches of [start, end) into the log's own state."""
    cdef replay_t r
    r.log, r.producers, r.transactions, r.indexed = l, &l.producers, &l.transactions, NULL
    return replay(&r, start, end)


cdef int replay_producers(log_t* l, int64_t start, int64_t end, sequence_t* into) noexcept nogil:
    """Replay the batches of [start, end) into a producer state."""
    cdef replay_t r
    r.log, r.producers, r.transactions, r.indexed = l, into, NULL, NULL
    return replay(&r, start, end)
