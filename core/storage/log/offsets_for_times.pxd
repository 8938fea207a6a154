# Look-up by time.
from libc.stdint cimport int64_t

from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef int log_find_time(log_t* l, int64_t timestamp, int64_t bound, batch_t* out) noexcept nogil
cdef int log_find_largest(log_t* l, batch_t* out) noexcept nogil
cdef int segment_learn(segment_t* s) noexcept nogil
