# The check of a batch's base offset, which no CRC covers, against its neighbours in a segment.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_last_offset, batch_t


cdef inline bint batch_may_follow(const batch_t* b, int64_t reached, int64_t next_base) noexcept nogil:
    """True if its offsets are between `reached`, the end of the batch before it, and the next segment's base offset;
    `next_base` is INT64_MAX if no segment follows."""
    return b.base_offset >= reached and batch_last_offset(b) < next_base


cdef enum:
    WITNESSES = 2


cdef inline bint batch_denies(const batch_t* witness, const batch_t* b) noexcept nogil:
    """True if a later batch, which may follow the batches before `b`, cannot follow `b`."""
    return witness.base_offset <= batch_last_offset(b)


# Check whether the batches after a gap-making batch contradict its base offset: they could follow if it were not there.
# The n bytes at `p` follow the batch. Return 1 if they contradict it, else 0; SHORT if n is too small.
cdef int batch_is_contradicted(
    const batch_t* b, int64_t reached, int64_t next_base, const uint8_t* p, int64_t n) noexcept nogil
