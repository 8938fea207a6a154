"""Segments that a start trusts, as they were flushed: those below the recovery point, and all after a clean stop.

Only their last batch is read, to find where they end. A bad index is rebuilt alone (reindex.pyx).
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT64_MAX, int64_t

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.batch.batch cimport batch_last_offset, batch_t
from pybroker.core.storage.log.log cimport log_add_segment, log_t
from pybroker.core.storage.recovery.damage cimport damage_search
from pybroker.core.storage.recovery.recovery_scan cimport find_bytes
from pybroker.core.storage.recovery.recovery_state cimport FAULT_GAP, FAULT_ORDER, recovery_fault, recovery_t
from pybroker.core.storage.recovery.reindex cimport load_indexes
from pybroker.core.storage.segment.index cimport index_free, index_t
from pybroker.core.storage.segment.open_files cimport files_drop, files_t
from pybroker.core.storage.segment.segment cimport (
    UNKNOWN, segment_files, segment_free, segment_new, segment_open, segment_t, segment_times,
)
from pybroker.core.storage.segment.segment_aborts cimport segment_aborts, segment_look_for_aborts
from pybroker.core.storage.segment.segment_search cimport NOT_FOUND, search_init, search_t, search_to_last
from pybroker.core.storage.segment.transaction_index cimport aborts_t


cdef int end_of(segment_t* s, int64_t* end) noexcept nogil:
    """Find the offset after a segment's last batch, and check that this batch ends where the file does."""
    cdef search_t w
    cdef batch_t b
    cdef files_t* f
    cdef int64_t position = 0
    cdef int status = segment_files(s, &f)
    if status < 0:
        return status
    end[0] = s.base_offset
    search_init(&w, s, f, s.size)
    status = search_to_last(&w, &position, &b)
    if status == 0:
        end[0] = batch_last_offset(&b) + 1
    return 0 if status == NOT_FOUND else status


cdef int look_for_aborts(log_t* l, segment_t* s) noexcept nogil:
    cdef int status = segment_look_for_aborts(s)
    l.has_aborts |= s.aborts_unread
    return status


cdef int64_t reach_before(log_t* l, int64_t next_base) noexcept nogil:
    """The offset that a damaged segment may reach: the base offset of the next one, even if its batches claim more, as
    no CRC covers offsets. INT64_MAX if the next file is empty: a roll may have created it, and appends gone on."""
    return INT64_MAX if find_bytes(l, &next_base, 0, 1) == NOT_FOUND else next_base


cdef int open_sealed(log_t* l, int64_t base, int64_t next_base, recovery_t* r) noexcept nogil:
    """List a trusted segment: below the recovery point, or after a clean stop, and not the last."""
    cdef segment_t* s = segment_new(l.context.fs, l.directory, base)
    cdef index_t times
    cdef int64_t end = base, searched = base
    cdef int status
    if s == NULL:
        return -ENOMEM
    s.sealed = 1
    status = segment_open(s, "", False)
    if status == 0:
        status = end_of(s, &end)
    if status > 0:
        status = damage_search(l, s, next_base, reach_before(l, next_base), not r.gaps, &end)
        end = min(end, reach_before(l, next_base))
    elif status == 0 and (end > next_base or (end < next_base and not r.gaps and next_base > r.log_start)):
        # The CRC does not cover the offset of a batch: perhaps only an offset is wrong.
        status = damage_search(l, s, next_base, reach_before(l, next_base), not r.gaps, &searched)
        if s.spots != NULL:
            end = min(searched, reach_before(l, next_base))
    if status == 0 and (end > next_base or (end < next_base and not r.gaps and next_base > r.log_start)):
        status = recovery_fault(r, FAULT_GAP if end < next_base else FAULT_ORDER, end, next_base)
    if status == 0:
        status = look_for_aborts(l, s)
    if status == 0:
        segment_times(s, s.files, &times)  # marks the index as bad if it is missing
        index_free(&times)
        l.repair |= s.index_bad
        s.flushed = s.size
        s.end_offset = next_base
        s.largest_timestamp = UNKNOWN
        if s.files != NULL and not s.index_bad:
            files_drop(s.files)
            s.files = NULL
        status = log_add_segment(l, s)
    if status != 0:
        segment_free(s)
    return status


cdef int open_last(log_t* l, int64_t base, recovery_t* r, int64_t* end) noexcept nogil:
    """List the active segment after a clean stop. CORRUPT_MESSAGE if it does not end with a whole batch."""
    cdef segment_t* s = segment_new(l.context.fs, l.directory, base)
    cdef aborts_t* aborts = NULL
    cdef int status
    if s == NULL:
        return -ENOMEM
    status = segment_open(s, "", True)
    if status == 0:
        status = load_indexes(s, peek_i64(&l.settings.index_interval_bytes), &r.rebuilt)
    if status == 0:
        status = end_of(s, end)
    if status == 0:
        s.end_offset = end[0]
        status = look_for_aborts(l, s)
    if status == 0:
        status = min(segment_aborts(s, &aborts), 0)  # a bad one is built again once the producers are known
    if status == 0:
        s.flushed = s.size
        status = log_add_segment(l, s)
    if status != 0:
        segment_free(s)
    return status
