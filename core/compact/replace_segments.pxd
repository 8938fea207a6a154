# Replacing segments by the cleaned one that was made of them.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef enum:
    CHANGED = -100006        # a status: segments were removed meanwhile, nothing was done

cdef int replace_segments(log_t* l, int64_t generation, int64_t first, int64_t count, segment_t* fresh) noexcept nogil
cdef int replace_finish(log_t* l, int64_t base, const int64_t* bases, int64_t n) noexcept nogil
