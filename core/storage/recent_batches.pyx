"""The last batches of a log, remembered as they are appended: who reads at its end needs no look at the file.

A ring of (last offset, end) of batches side by side, all of the active segment: a sealed one may be compacted. A batch
is found by the one before it, which names where it begins; so the first in the ring is there for the second alone. An
append that does not follow what is here, since the log was cut, begins it anew. Until then what is here of the cut log
lies where it lay; what a reader found while it was cut is void by the log's generation.
"""

from libc.stdint cimport int64_t, uint32_t

from pybroker.core.base.atomic cimport seq_begin, seq_end, seq_get, seq_read, seq_retry, seq_set


cdef inline void put(recent_t* r, int64_t last_offset, int64_t end) noexcept nogil:
    cdef int64_t i = r.count % RECENT_MAX
    seq_set(&r.last_offsets[i], last_offset)
    seq_set(&r.ends[i], end)
    seq_set(&r.count, r.count + 1)


cdef void recent_add(
    recent_t* r, int64_t segment, int64_t position, int64_t before, int64_t last_offset, int64_t end) noexcept nogil:
    """A batch was written at `position`, behind one that ended with the offset `before`. Under the append mutex."""
    cdef bint follows = r.count > 0 and r.segment == segment and r.ends[(r.count - 1) % RECENT_MAX] == position
    seq_begin(&r.lock)
    if not follows:
        seq_set(&r.segment, segment)
        seq_set(&r.count, 0)
        put(r, before, position)
    put(r, last_offset, end)
    seq_end(&r.lock)


cdef void recent_forget(recent_t* r) noexcept nogil:
    """Another segment is active. Under the append mutex."""
    seq_begin(&r.lock)
    seq_set(&r.count, 0)
    seq_end(&r.lock)


cdef void recent_copy(const recent_t* r, recent_t* out) noexcept nogil:
    """What is remembered at one moment."""
    cdef uint32_t s
    cdef int i
    while True:
        s = seq_read(&r.lock)
        out.segment = seq_get(&r.segment)
        out.count = seq_get(&r.count)
        for i in range(RECENT_MAX):
            out.last_offsets[i] = seq_get(&r.last_offsets[i])
            out.ends[i] = seq_get(&r.ends[i])
        if not seq_retry(&r.lock, s):
            return


cdef bint recent_find(const recent_t* copy, int64_t offset, int64_t* start, int64_t* end) noexcept nogil:
    """Where the batch lies that holds an offset, or is the first behind it; False if it is not remembered."""
    cdef int64_t k = copy.count - 1, oldest = max(<int64_t>0, copy.count - RECENT_MAX)
    if k < 0 or copy.last_offsets[k % RECENT_MAX] < offset:
        return False
    while k > oldest:
        if copy.last_offsets[(k - 1) % RECENT_MAX] < offset:
            start[0] = copy.ends[(k - 1) % RECENT_MAX]
            end[0] = copy.ends[k % RECENT_MAX]
            return True
        k -= 1
    return False


cdef int64_t recent_boundary(const recent_t* copy, int64_t start, int64_t limit) noexcept nogil:
    """The largest batch boundary up to the position `limit`, from `start` on, where a remembered batch begins."""
    cdef int64_t k = copy.count - 1
    while copy.ends[k % RECENT_MAX] > limit and copy.ends[k % RECENT_MAX] > start:
        k -= 1
    return max(start, copy.ends[k % RECENT_MAX])
