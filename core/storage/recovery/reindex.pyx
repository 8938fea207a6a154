"""The indexes of a segment, loaded from their files or rebuilt from its batch headers.

The index files of an active segment lag behind, and any index file can be damaged. An index entry is checked against
the batch that it names, and a bad index is rebuilt alone, from the log.
"""

from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from pybroker.core.base.atomic cimport peek_i64, poke_i64, store_i64
from pybroker.core.batch.batch cimport batch_last_offset, batch_t, batch_timestamp
from pybroker.core.storage.recovery.damage cimport damage_copy
from pybroker.core.storage.segment.index cimport (
    OFFSET_ENTRY, TIME_ENTRY, entry_t, index_free, index_get, index_init, index_load, index_replace,
)
from pybroker.core.storage.segment.open_files cimport indexes_t
from pybroker.core.storage.segment.segment cimport (
    PATH_BYTES, UNKNOWN, segment_free, segment_new, segment_note, segment_open, segment_path,
)
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND, search_header, search_init, search_t


cdef int segment_retime(segment_t* s) noexcept nogil:
    """Compute an active segment's state that its indexes lack: first and largest timestamp, bytes since the last entry.

    -EIO if an index names a batch that is not at that position, or an offset past the last batch."""
    cdef search_t w
    cdef batch_t b
    cdef entry_t entry
    cdef indexes_t* x = s.indexes
    cdef int64_t position = 0
    cdef int status
    s.first_timestamp = UNKNOWN
    poke_i64(&s.largest_offset, s.base_offset)
    store_i64(&s.largest_timestamp, -1)
    s.since_entry = 0
    search_init(&w, s, s.files, s.size)
    status = search_header(&w, &position, &b)
    if status == NOT_FOUND:
        return 0
    if status != 0:
        return status
    s.first_timestamp = b.max_timestamp
    if x.offsets.count > 0:
        index_get(&x.offsets, x.offsets.count - 1, &entry)
        position = entry.value
        status = search_header(&w, &position, &b)
        if status != 0 or position != entry.value or b.base_offset > s.base_offset + entry.key:
            return -EIO
    if x.times.count > 0:
        index_get(&x.times, x.times.count - 1, &entry)
        poke_i64(&s.largest_offset, s.base_offset + entry.value)
        store_i64(&s.largest_timestamp, entry.key)
    while status == 0:
        if batch_timestamp(&b) > s.largest_timestamp:
            poke_i64(&s.largest_offset, batch_last_offset(&b))
            store_i64(&s.largest_timestamp, b.max_timestamp)
        s.since_entry += b.size
        position += b.size
        status = search_header(&w, &position, &b)
    if status == NOT_FOUND:
        return 0 if s.largest_offset <= batch_last_offset(&b) else -EIO
    return status


cdef void forget_indexes(segment_t* s) noexcept nogil:
    index_free(&s.indexes.offsets)
    index_free(&s.indexes.times)
    index_init(&s.indexes.offsets, OFFSET_ENTRY)
    index_init(&s.indexes.times, TIME_ENTRY)
    s.first_timestamp = UNKNOWN
    poke_i64(&s.largest_offset, s.base_offset)
    store_i64(&s.largest_timestamp, -1)
    s.since_entry = 0


cdef int build_indexes(segment_t* s, int64_t interval) noexcept nogil:
    """Build the heap indexes of a segment from its headers."""
    cdef search_t w
    cdef batch_t b
    cdef int64_t position = 0
    cdef int status
    forget_indexes(s)
    search_init(&w, s, s.files, s.size)
    status = search_header(&w, &position, &b)
    while status == 0:
        segment_note(s, position, b.size, batch_last_offset(&b), batch_timestamp(&b), interval)
        position += b.size
        status = search_header(&w, &position, &b)
    return 0 if status == NOT_FOUND else status


cdef int load_indexes(segment_t* s, int64_t interval, int32_t* rebuilt) noexcept nogil:
    """Load the indexes of an active segment onto the heap: from their files, or from the log if a file is bad."""
    cdef char path[PATH_BYTES]
    cdef int status
    segment_path(s, ".index", path)
    status = index_load(&s.indexes.offsets, s.fs, path, s.size - 1)
    if status == 0:
        segment_path(s, ".timeindex", path)
        status = index_load(&s.indexes.times, s.fs, path, INT32_MAX)
    if status == 0:
        status = segment_retime(s)
    if status == 0:
        return 0
    if s.size > 0:
        rebuilt[0] += 1
    return build_indexes(s, interval)


cdef int segment_reopen(log_t* l, const segment_t* known, segment_t** out) noexcept nogil:
    """Reopen a sealed segment as an active one, with its indexes on the heap."""
    cdef int32_t rebuilt = 0
    cdef segment_t* s = segment_new(l.context.fs, l.directory, known.base_offset)
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = damage_copy(known, s)
    if status == 0:
        status = segment_open(s, "", True)
    if status == 0:
        status = load_indexes(s, peek_i64(&l.settings.index_interval_bytes), &rebuilt)
    if status != 0:
        segment_free(s)
        return status
    out[0] = s
    return 0


cdef int segment_rebuild(segment_t* s, int64_t interval) noexcept nogil:
    """Rebuild the index files of a sealed segment; the flusher calls this after a look-up found a bad entry."""
    cdef char path[PATH_BYTES]
    cdef segment_t* copy = segment_new(s.fs, s.directory, s.base_offset)
    cdef int status
    if copy == NULL:
        return -ENOMEM
    status = damage_copy(s, copy)
    if status == 0:
        status = segment_open(copy, "", True)
    if status == 0:
        status = build_indexes(copy, interval)
    if status == 0:
        segment_path(s, ".index", path)
        status = index_replace(&copy.indexes.offsets, s.fs, path)
    if status == 0:
        segment_path(s, ".timeindex", path)
        status = index_replace(&copy.indexes.times, s.fs, path)
    segment_free(copy)
    return status
