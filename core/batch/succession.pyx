"""The rule for base offsets in a segment, which no CRC covers.

A batch's offsets are between the end of the batch before it and the base offset of the next segment. Compaction leaves
gaps, so there may be a gap before a batch. It is accepted unless the next two headers both fit without it and neither
fits with it. The scan of a broker's own segments (core/storage/segment/segment_scan.pyx) applies the same rule, and
leader epochs.
"""

from libc.stdint cimport int64_t, uint8_t

from pybroker.core.base.cursor cimport OK, SHORT
from pybroker.core.batch.batch cimport HEADER_BYTES, batch_parse, batch_t

cdef enum:
    BODY_ELSEWHERE = 0xFFFFFFFF  # more than any batch: only the header is checked


cdef int batch_is_contradicted(
    const batch_t* b, int64_t reached, int64_t next_base, const uint8_t* p, int64_t n
) noexcept nogil:
    cdef batch_t witness
    cdef int _
    if b.base_offset <= reached:
        return 0
    for _ in range(WITNESSES):
        if n < HEADER_BYTES:
            return SHORT
        if batch_parse(p, BODY_ELSEWHERE, &witness) != OK or not batch_may_follow(&witness, reached, next_base):
            return 0
        if not batch_denies(&witness, b):
            return 0
        p += witness.size
        n -= witness.size
    return 1
