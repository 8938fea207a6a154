# Bad spots: ranges of a segment's file that hold no sound batch. Readers skip them; the records in them are lost.
from libc.stdint cimport int32_t, int64_t

cdef struct spot_t:
    int64_t position         # its start in the file: the end of the sound batch before it
    int64_t end              # the start of the next sound batch, or the end of the file
    int64_t first            # the offsets that were in it: [first, next)
    int64_t next

cdef struct spots_t:         # of one segment, ascending; immutable once readers see it
    int32_t count
    spot_t* items


cdef inline const spot_t* spot_at(const spots_t* spots, int64_t position) noexcept nogil:
    """The bad spot that contains a position; NULL if none."""
    cdef int32_t i
    for i in range(spots.count):
        if spots.items[i].position <= position < spots.items[i].end:
            return &spots.items[i]
    return NULL


cdef inline int64_t spot_from(const spots_t* spots, int64_t position, int64_t limit) noexcept nogil:
    """The start of the first bad spot at or after a position; `limit` if that is nearer."""
    cdef int32_t i
    for i in range(spots.count):
        if position <= spots.items[i].position < limit:
            return spots.items[i].position
    return limit
