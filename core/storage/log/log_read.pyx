"""Finds the batches for a reader: a range of one segment's file, which is held for it.

One binary search among segments, one in an index, then headers; at the log's end, the remembered last batches instead.
No lock is taken.
"""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i64, load_ptr, store_i32, store_i64
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.log cimport (
    found_t, log_note_index, log_t, segment_limit, segments_floor, segments_t, view_t,
)
from pybroker.core.storage.producers.recent_batches cimport recent_boundary, recent_copy, recent_find, recent_t
from pybroker.core.storage.segment.open_files cimport files_hold, files_t
from pybroker.core.storage.segment.segment cimport segment_files, segment_t
from pybroker.core.storage.segment.segment_search cimport (
    DAMAGED, NOT_FOUND, search_init, search_t, search_to_boundary, search_to_offset,
)


cdef int bound_position(search_t* w, int64_t bound) noexcept nogil:
    """Lower the search's limit to the start of the batch with offset `bound`."""
    cdef batch_t b
    cdef int64_t position
    cdef int status = search_to_offset(w, bound, &position, &b)
    if status == 0 or status == DAMAGED:
        w.limit = position
    return 0 if status == NOT_FOUND or status == DAMAGED else status


cdef bint find_recent(
    const log_t* l, const segment_t* s, int64_t offset, int64_t most, int64_t bound, bint minimum_one, const view_t* v,
    found_t* out) noexcept nogil:
    """Find the range among the remembered last batches, without its files; False if it does not begin there."""
    cdef recent_t recent
    cdef int64_t limit = segment_limit(s, v), start = 0, end = 0, after = 0
    if s.base_offset != v.active_base:
        return False
    recent_copy(&l.recent, &recent)
    if recent.segment != s.base_offset or load_ptr(<void**>&s.spots) != NULL:
        return False
    if bound < v.log_end and not recent_find(&recent, bound, &limit, &end):
        return False
    if not recent_find(&recent, offset, &start, &end) or end > limit:
        return False
    after = limit if most >= limit - start else recent_boundary(&recent, start, start + most)
    out.position = start
    out.length = (end if after == start and minimum_one else after) - start
    return True


cdef void suspect(log_t* l, const segment_t* s) noexcept nogil:
    """Have a segment checked in which a read met an invalid batch."""
    store_i64(&l.suspect, s.base_offset + 1)
    store_i32(&l.context.suspects, 1)


cdef int read_segment(
    log_t* l, segment_t* s, int64_t offset, int64_t most, int64_t bound, bint minimum_one, const view_t* v,
    found_t* out) noexcept nogil:
    """Find the range of one segment from `offset` on; NOT_FOUND if the segment ends before the offset."""
    cdef files_t* f
    cdef search_t w
    cdef batch_t b
    cdef int64_t position = 0, end = 0
    cdef int status = segment_files(s, &f)
    if status < 0:
        return status
    if find_recent(l, s, offset, most, bound, minimum_one, v, out):
        if out.length > 0:
            files_hold(f)
            out.files = f
        return 0
    search_init(&w, s, f, segment_limit(s, v))
    if bound < v.log_end:
        status = bound_position(&w, bound)
        if status != 0:
            return status
    status = search_to_offset(&w, offset, &position, &b)
    if status != 0:
        return status
    status = search_to_boundary(&w, position, most, &end)
    if status == CORRUPT_MESSAGE and end > position:
        suspect(l, s)            # the batches before it are sound
    elif status != 0:
        return status
    if end == position and minimum_one:
        end = position + b.size
    if end > position:
        files_hold(f)
        out.files = f
        out.position = position
        out.length = end - position
    return 0


cdef int log_read(
    log_t* l, int64_t offset, int64_t most, int64_t bound, bint minimum_one, const view_t* v,
    found_t* out) noexcept nogil:
    """Find the batches from `offset` up to `most` bytes that end at or before `bound`. The caller is pinned, took the
    view inside its pin, and checked the offset against it. One answer never spans two segments."""
    cdef segments_t* list = <segments_t*>load_ptr(<void**>&l.segments)
    cdef int64_t i = segments_floor(list, offset)
    cdef int status
    out.files = NULL
    out.length = 0
    if offset >= bound:
        return 0
    if i < 0:
        i = 0
    while i < load_i64(&list.count) and list.items[i].base_offset < bound:
        status = read_segment(l, list.items[i].segment, offset, most, bound, minimum_one, v, out)
        log_note_index(l, list.items[i].segment)
        if status == CORRUPT_MESSAGE:
            suspect(l, list.items[i].segment)
        if status != NOT_FOUND:
            return status if status != DAMAGED else CORRUPT_MESSAGE
        i += 1
    return 0
