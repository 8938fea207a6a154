"""Look-up by time: the first batch that reaches a timestamp, and the first with the largest timestamp.

The largest timestamp of a sealed segment is found once, at the first look-up: from its time index, or, if that is bad,
from the headers of all its batches. Both read the disk, so the caller must hold no lock.
"""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i64, load_ptr, peek_i64, poke_i64, store_i64
from pybroker.core.batch.batch cimport batch_t, batch_timestamp
from pybroker.core.storage.log.log cimport log_note_index, log_t, log_view, segment_limit, segments_t, view_t
from pybroker.core.storage.segment.index cimport entry_t, index_free, index_get, index_t
from pybroker.core.storage.segment.open_files cimport files_drop, files_t
from pybroker.core.storage.segment.segment cimport (
    UNKNOWN, segment_doubt_index, segment_files, segment_t, segment_times, segment_visit,
)
from pybroker.core.storage.segment.segment_search cimport (
    DAMAGED, NOT_FOUND, search_header, search_init, search_t, search_to_offset, search_to_time,
)


cdef int learn_from(segment_t* s, search_t* w, int64_t* largest, int64_t* at_offset) noexcept nogil:
    """Find the largest timestamp of a sealed segment: the last entry of its time index (a seal always adds it) if that
    names an existing batch, else from the headers of the whole segment."""
    cdef batch_t b
    cdef entry_t last
    cdef index_t own
    cdef const index_t* times = segment_times(s, w.files, &own)
    cdef int64_t position = 0
    cdef bint found = False
    cdef int status
    if times.count > 0 and index_get(times, times.count - 1, &last) == 0:
        largest[0] = last.key
        at_offset[0] = s.base_offset + last.value
        status = search_to_offset(w, at_offset[0], &position, &b)
        found = status == 0 and b.base_offset <= at_offset[0] and b.max_timestamp == last.key
        if not found:
            segment_doubt_index(s, w.files)
    index_free(&own)
    if found:
        return 0
    largest[0] = -1
    at_offset[0] = s.base_offset
    position = 0
    status = search_header(w, &position, &b)
    while status == 0:
        if batch_timestamp(&b) > largest[0]:
            largest[0] = b.max_timestamp
            at_offset[0] = b.base_offset + b.last_offset_delta
        position += b.size
        status = search_header(w, &position, &b)
    return 0 if status == NOT_FOUND else status


cdef int segment_learn(segment_t* s) noexcept nogil:
    """Find the largest timestamp of a sealed segment, if it is not known yet. The caller is pinned."""
    cdef search_t w
    cdef files_t* f
    cdef int64_t largest = -1, at_offset = -1
    cdef int status
    if load_i64(&s.largest_timestamp) != UNKNOWN:
        return 0
    status = segment_visit(s, &f)
    if status < 0:
        return status
    search_init(&w, s, f, load_i64(&s.size))
    status = learn_from(s, &w, &largest, &at_offset)
    files_drop(f)
    if status == 0:
        poke_i64(&s.largest_offset, at_offset)
        store_i64(&s.largest_timestamp, largest)
    return status


cdef int log_find_time(log_t* l, int64_t timestamp, int64_t bound, batch_t* out) noexcept nogil:
    """Find the first batch below `bound` whose largest timestamp is >= `timestamp`; NOT_FOUND if none is. The caller is
    pinned."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef segment_t* s
    cdef files_t* f
    cdef search_t w
    cdef view_t v
    cdef index_t own
    cdef int64_t i, position = 0
    cdef int status
    log_view(l, &v)
    for i in range(load_i64(&list.count)):
        s = list.items[i].segment
        if i + 1 < load_i64(&list.count) and list.items[i + 1].base_offset <= v.log_start:
            continue
        status = segment_learn(s)
        if status != 0:
            return status
        if load_i64(&s.largest_timestamp) < timestamp:
            continue
        status = segment_files(s, &f)
        if status < 0:
            return status
        search_init(&w, s, f, segment_limit(s, &v))
        status = search_to_time(&w, segment_times(s, f, &own), timestamp, v.log_start, &position, out)
        index_free(&own)
        log_note_index(l, s)
        if status == 0:
            return 0 if out.base_offset < bound else NOT_FOUND
        if status != NOT_FOUND:
            return status
    return NOT_FOUND


cdef int find_largest(segment_t* s, const view_t* v, batch_t* out) noexcept nogil:
    """Find the first batch with the largest timestamp among a segment's batches that are within the view and hold
    records; NOT_FOUND if none has a timestamp."""
    cdef files_t* f
    cdef search_t w
    cdef batch_t b
    cdef int64_t position = 0, at = peek_i64(&s.largest_offset)
    cdef int status = segment_files(s, &f)
    cdef bint found = False
    if status < 0:
        return status
    search_init(&w, s, f, segment_limit(s, v))
    if v.log_start <= at < v.log_end and search_to_offset(&w, at, &position, out) == 0:
        return 0
    # The segment's largest timestamp is of a batch that was deleted, is damaged, or not visible yet: scan the others.
    status = search_to_offset(&w, v.log_start, &position, &b)
    if status == DAMAGED:
        status = search_header(&w, &position, &b)
    while status == 0:
        if batch_timestamp(&b) > (out.max_timestamp if found else -1):
            out[0] = b
            found = True
        position += b.size
        status = search_header(&w, &position, &b)
    return 0 if found and status == NOT_FOUND else status


cdef int log_find_largest(log_t* l, batch_t* out) noexcept nogil:
    """Find the first batch with the largest timestamp of the log; NOT_FOUND if no record has one. The caller is pinned.

    From the last segment backwards: timestamps mostly ascend, and then the others are not even opened."""
    cdef segments_t* list
    cdef segment_t* s
    cdef batch_t b
    cdef view_t v
    cdef int64_t i, largest = -1
    cdef int status
    log_view(l, &v)
    list = <segments_t*>load_ptr(<void**>&l.segments)
    i = load_i64(&list.count) - 1
    while i >= 0:
        s = list.items[i].segment
        status = segment_learn(s)
        if status == 0 and load_i64(&s.largest_timestamp) >= max(largest, <int64_t>0):
            status = find_largest(s, &v, &b)
            if status == 0 and b.max_timestamp >= largest:
                largest = b.max_timestamp
                out[0] = b
        if status != 0 and status != NOT_FOUND:
            return status
        if s.base_offset <= v.log_start:
            break
        i -= 1
    return 0 if largest >= 0 else NOT_FOUND
