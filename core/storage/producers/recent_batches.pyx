"""The last batches of a log, remembered as they are appended, so that readers at the log's end need no file reads.

A ring of (last offset, end) of adjacent batches, all in the active segment: a sealed one may be compacted. The start of
a batch is the end of the one before it; so the first entry of the ring serves only to find the second. After a
truncation, the next append does not follow the ring's last batch, and resets the ring. Until then, the entries of
batches that were not truncated are right; results of reads during the truncation are void by the log's generation.
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
    """Add a batch written at `position`, after one with the last offset `before`. Under the append mutex."""
    cdef bint follows = r.count > 0 and r.segment == segment and r.ends[(r.count - 1) % RECENT_MAX] == position
    seq_begin(&r.lock)
    if not follows:
        seq_set(&r.segment, segment)
        seq_set(&r.count, 0)
        put(r, before, position)
    put(r, last_offset, end)
    seq_end(&r.lock)


cdef void recent_forget(recent_t* r) noexcept nogil:
    """Reset the ring, as another segment becomes active. Under the append mutex."""
    seq_begin(&r.lock)
    seq_set(&r.count, 0)
    seq_end(&r.lock)


cdef void recent_copy(const recent_t* r, recent_t* out) noexcept nogil:
    """Copy the ring consistently."""
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
    """Find the position of the batch that holds an offset, or is the first after it; False if it is not in the ring."""
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
    """The largest batch boundary up to the position `limit`; `start` is the beginning of a remembered batch."""
    cdef int64_t k = copy.count - 1
    while copy.ends[k % RECENT_MAX] > limit and copy.ends[k % RECENT_MAX] > start:
        k -= 1
    return max(start, copy.ends[k % RECENT_MAX])
