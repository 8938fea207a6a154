"""Finding batches in a segment without reading records: one index search, then from header to header.

Headers are read by pread into a small buffer, or copied out of a map if a sealed segment is searched again and again.
If the map has lost a page, they are read by pread, which returns the disk's error. An index entry is checked against
the header at its position; if it does not fit, the index is marked, and the search starts at the segment's start. At
the limit (the published end of the file) every search returns NOT_FOUND. Known bad spots are skipped; a search for an
offset in one returns DAMAGED.
"""

from libc.stdint cimport INT32_MAX, int64_t, uint8_t
from libc.string cimport memcpy

from pybroker.core.base.atomic cimport load_i32, load_ptr
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE
from pybroker.core.base.mapping cimport map_t
from pybroker.core.base.vfs cimport P_SEGMENT_READ, vfs_ask_for, vfs_pass_file, vfs_pread
from pybroker.core.batch.batch cimport HEADER_BYTES, batch_last_offset, batch_parse, batch_t
from pybroker.core.batch.marker cimport MARKER_BODY_MAX
from pybroker.core.storage.segment.index cimport entry_t, index_floor, index_floor_value, index_t
from pybroker.core.storage.segment.open_files cimport files_map, files_t
from pybroker.core.storage.segment.segment cimport segment_doubt_index, segment_t
from pybroker.core.storage.segment.spots cimport spot_at, spot_from, spot_t, spots_t

cdef enum:
    AHEAD_BYTES = 1 << 20


cdef void search_init(search_t* w, const segment_t* s, files_t* f, int64_t limit) noexcept nogil:
    w.segment = s
    w.files = f
    w.spots = <const spots_t*>load_ptr(<void**>&s.spots)
    w.limit = limit
    w.began = -1
    w.asked = 0
    w.buffered = 0
    w.length = 0


cdef int copy_header(search_t* w, int64_t position) noexcept nogil:
    """Copy a header out of the map; NOT_FOUND if it must be read by pread."""
    cdef const map_t* m
    cdef int status
    if not load_i32(&w.segment.sealed):
        return NOT_FOUND
    m = files_map(w.files, w.limit)
    if m == NULL:
        return NOT_FOUND
    status = vfs_pass_file(w.segment.fs, P_SEGMENT_READ, w.files.fd)
    if status < 0:
        return status
    memcpy(w.buffer, m.data + position, HEADER_BYTES)
    w.length = HEADER_BYTES
    return NOT_FOUND if load_i32(&m.lost) else 0


cdef int header_at(search_t* w, int64_t position, batch_t* out) noexcept nogil:
    """Read the header of the batch at `position`; NOT_FOUND at the limit, CORRUPT_MESSAGE if there is no whole batch,
    DAMAGED in a bad spot."""
    cdef int64_t at = position - w.buffered
    cdef int status
    if position >= w.limit:
        return NOT_FOUND
    if w.spots != NULL and spot_at(w.spots, position) != NULL:
        return DAMAGED
    if position < 0 or w.limit - position < HEADER_BYTES:
        return CORRUPT_MESSAGE
    if at < 0 or at + <int64_t>HEADER_BYTES > <int64_t>w.length:
        w.length = 0
        status = copy_header(w, position)
        if status == NOT_FOUND:
            status = vfs_pread(
                w.segment.fs, P_SEGMENT_READ, w.files.fd, w.buffer, min(<int64_t>WALK_BYTES, w.limit - position),
                position, &w.length)
        if status < 0:
            return status
        w.buffered = position
        at = 0
        if w.length < HEADER_BYTES:
            return CORRUPT_MESSAGE
    status = batch_parse(w.buffer + at, BODY_ELSEWHERE, out)
    if status == 0 and out.size <= w.limit - position and out.base_offset >= w.segment.base_offset:
        if batch_last_offset(out) - w.segment.base_offset <= INT32_MAX:
            return 0
    return status if status < 0 else CORRUPT_MESSAGE


cdef void ask_ahead(search_t* w, int64_t position) noexcept nogil:
    """Read ahead on a long walk, as the kernel's own readahead is off."""
    if w.began < 0 or position < w.began:
        w.began = position
    if position - w.began > AHEAD_BYTES // 8 and position + AHEAD_BYTES // 2 > w.asked:
        w.asked = max(w.asked, position)
        vfs_ask_for(w.files.fd, w.asked, min(<int64_t>AHEAD_BYTES, w.limit - w.asked))
        w.asked += AHEAD_BYTES


cdef int search_header(search_t* w, int64_t* position, batch_t* out) noexcept nogil:
    """Read the header of the next batch from `position` on; `position` moves past bad spots. NOT_FOUND at the limit,
    CORRUPT_MESSAGE if there is no whole batch."""
    cdef int status
    ask_ahead(w, position[0])
    status = header_at(w, position[0], out)
    while status == DAMAGED:
        position[0] = spot_at(w.spots, position[0]).end
        status = header_at(w, position[0], out)
    return status


cdef int search_body(search_t* w, int64_t position, const batch_t* b, uint8_t* body, size_t* n) noexcept nogil:
    """Read the bytes after the header of a batch, at most MARKER_BODY_MAX."""
    cdef int64_t at = position - w.buffered + <int64_t>HEADER_BYTES
    cdef size_t wanted = <size_t>min(b.size - <int64_t>HEADER_BYTES, <int64_t>MARKER_BODY_MAX)
    n[0] = wanted
    if at >= 0 and at + <int64_t>wanted <= <int64_t>w.length:
        memcpy(body, w.buffer + at, wanted)
        return 0
    return vfs_pread(
        w.segment.fs, P_SEGMENT_READ, w.files.fd, body, wanted, position + <int64_t>HEADER_BYTES, n)


cdef int64_t start_of(search_t* w, int64_t found, entry_t* entry, int64_t offset) noexcept nogil:
    """The position to begin at: the index entry's, if a batch is there that is not past `offset`; else 0."""
    cdef batch_t b
    if found == -1:
        return 0
    if found >= 0 and header_at(w, entry.value, &b) == 0 and b.base_offset <= offset:
        return entry.value
    segment_doubt_index(w.segment, w.files)
    return 0


cdef int search_to_offset(search_t* w, int64_t offset, int64_t* position, batch_t* out) noexcept nogil:
    """Find the first batch whose last offset is >= `offset`: the one that holds it, or the next after a gap. DAMAGED,
    with the spot's position, if a bad spot holds it."""
    cdef entry_t entry
    cdef const spot_t* spot
    cdef int64_t relative = offset - w.segment.base_offset
    cdef int64_t at = start_of(w, index_floor(&w.files.indexes.offsets, relative, &entry), &entry, offset)
    cdef int status
    while True:
        status = header_at(w, at, out)
        if status == DAMAGED:
            spot = spot_at(w.spots, at)
            if offset < spot.next:
                position[0] = spot.position
                return DAMAGED
            at = spot.end
            continue
        if status != 0:
            return status
        if out.base_offset + out.last_offset_delta >= offset:
            position[0] = at
            return 0
        at += out.size


cdef int search_to_boundary(search_t* w, int64_t start, int64_t most, int64_t* end) noexcept nogil:
    """Find the largest batch boundary within `most` bytes of `start`, before any bad spot; `start` if not even one
    batch fits. With CORRUPT_MESSAGE, `end` is where the invalid batch begins."""
    cdef entry_t entry
    cdef batch_t b
    cdef int64_t at = start, limit = start + most
    cdef int status
    if w.spots != NULL:
        limit = spot_from(w.spots, start, limit)
    if limit >= w.limit:
        end[0] = w.limit
        return 0
    if index_floor_value(&w.files.indexes.offsets, limit, &entry) >= 0 and entry.value > start:
        if header_at(w, entry.value, &b) == 0:
            at = entry.value
    while True:
        status = header_at(w, at, &b)
        if status == DAMAGED:
            end[0] = at
            return 0
        if status != 0:
            end[0] = at
            return status
        if at + b.size > limit:
            end[0] = at
            return 0
        at += b.size


cdef int search_to_entry(
    search_t* w, const index_t* times, int64_t timestamp, int64_t start, int64_t* at, batch_t* out) noexcept nogil:
    """Find the batch that the last time index entry up to `timestamp` names; no earlier batch has a later timestamp.
    NOT_FOUND if there is no entry, it is before `start`, or the batch is missing: then the index is bad, or the batch
    not visible yet."""
    cdef entry_t entry
    cdef int64_t found = index_floor(times, timestamp, &entry)
    cdef int status = NOT_FOUND
    if found == -1 or (found >= 0 and w.segment.base_offset + entry.value <= start):
        return NOT_FOUND
    if found >= 0:
        status = search_to_offset(w, w.segment.base_offset + entry.value, at, out)
        if status == 0 and out.base_offset <= w.segment.base_offset + entry.value and out.max_timestamp == entry.key:
            return 0
    if status != NOT_FOUND or load_i32(&w.segment.sealed):
        segment_doubt_index(w.segment, w.files)
    return NOT_FOUND


cdef int search_to_time(
    search_t* w, const index_t* times, int64_t timestamp, int64_t start, int64_t* position,
    batch_t* out) noexcept nogil:
    """Find the first batch with records whose largest timestamp is >= `timestamp` and whose last offset is >=
    `start`."""
    cdef int64_t at = 0
    cdef int status = search_to_entry(w, times, timestamp - 1, start, &at, out)
    if status == NOT_FOUND:
        status = search_to_offset(w, start, &at, out)
    if status == DAMAGED:
        status = search_header(w, &at, out)
    while status == 0 and (out.max_timestamp < timestamp or out.count == 0):
        at += out.size
        status = search_header(w, &at, out)
    position[0] = at
    return status


cdef int search_to_last(search_t* w, int64_t* position, batch_t* out) noexcept nogil:
    """Find the last batch below the limit."""
    cdef batch_t b
    cdef entry_t entry
    cdef int64_t at = 0
    cdef int status
    if index_floor_value(&w.files.indexes.offsets, w.limit - 1, &entry) >= 0:
        at = start_of(w, 0, &entry, (<int64_t>1) << 62)
    status = search_header(w, &at, &b)
    while status == 0:
        position[0] = at
        out[0] = b
        at += b.size
        status = search_header(w, &at, &b)
        if status == NOT_FOUND:
            return 0
    return status
