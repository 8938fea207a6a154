# The log's head: DeleteRecords, retention.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t, segments_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef int log_set_start(log_t* l, int64_t offset) noexcept nogil
cdef int log_retain(log_t* l, int64_t now_ms, int64_t* deleted) noexcept nogil
cdef int log_replace(log_t* l, int64_t first, int64_t count, segment_t* fresh, segments_t** old) noexcept nogil
cdef int log_discard_files(log_t* l, segment_t* s) noexcept nogil
cdef int log_discard_head(log_t* l, int64_t count, int64_t* discarded) noexcept nogil
cdef int log_unlist_head(log_t* l, int64_t count) noexcept nogil
