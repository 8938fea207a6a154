# Putting a cleaned segment in the place of those that it was made from.
from libc.stdint cimport int64_t

from pybroker.core.storage.log cimport log_t
from pybroker.core.storage.segment cimport segment_t

cdef enum:
    CHANGED = -100006        # a status: segments went meanwhile, nothing was done

cdef int replace_segments(log_t* l, int64_t generation, int64_t first, int64_t count, segment_t* fresh) noexcept nogil
cdef int replace_finish(log_t* l, int64_t base, const int64_t* bases, int64_t n) noexcept nogil
