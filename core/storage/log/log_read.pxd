# Reading: finding the batches for a reader.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport found_t, log_t, view_t

cdef int log_read(
    log_t* l, int64_t offset, int64_t most, int64_t bound, bint minimum_one, const view_t* v,
    found_t* out) noexcept nogil
