# Whether a batch of a segment may stand where it does: no CRC covers its base offset.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_last_offset, batch_t


cdef inline bint batch_may_follow(const batch_t* b, int64_t reached, int64_t next_base) noexcept nogil:
    """True if its offsets lie from `reached`, the offset behind the batch before it, to before the next segment's base;
    INT64_MAX where no segment follows."""
    return b.base_offset >= reached and batch_last_offset(b) < next_base


cdef enum:
    WITNESSES = 2


cdef inline bint batch_denies(const batch_t* witness, const batch_t* b) noexcept nogil:
    """True if a batch behind `b`, which could come if `b` were not there, cannot come after it."""
    return witness.base_offset <= batch_last_offset(b)


# Whether the batches behind one that leaps ahead contradict its base offset: they could come if it were not there. The
# n bytes at `p` follow the batch. SHORT if they do not suffice, else 1 or 0.
cdef int batch_is_contradicted(
    const batch_t* b, int64_t reached, int64_t next_base, const uint8_t* p, int64_t n) noexcept nogil
