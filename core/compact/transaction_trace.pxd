# The transactions whose batches one round of compaction meets.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.segment.transaction_index cimport abort_list_t, aborted_t

cdef struct trace_t:             # empty when zeroed
    abort_list_t aborted         # all that began below the round's bound; by producer and marker once sorted
    uint8_t* met                 # for each: a batch of it was met
    int64_t* committed           # producers, ascending: a batch was met, and its transaction was not aborted
    int64_t committed_count
    int64_t committed_capacity

cdef int trace_sort(trace_t* t) noexcept nogil
cdef void trace_free(trace_t* t) noexcept nogil
cdef bint trace_is_aborted(const trace_t* t, const batch_t* b) noexcept nogil
cdef int trace_batch(trace_t* t, const batch_t* b) noexcept nogil
cdef bint trace_marker(trace_t* t, const batch_t* b, const aborted_t** stays) noexcept nogil
