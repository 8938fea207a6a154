# Producers and transactions, restored from batch headers and markers.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.producers.producer_state cimport sequence_t
from pybroker.core.storage.producers.transactions cimport transactions_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef struct replay_t:        # what a replay restores
    log_t* log
    sequence_t* producers
    transactions_t* transactions  # NULL: none
    segment_t* indexed       # gets entries of its transaction index, and ends the replay; NULL: none
    int64_t high_watermark   # transactions that end at or above it wait; not used with the log's own

cdef int replay(replay_t* r, int64_t start, int64_t end) noexcept nogil
cdef int replay_waiting(log_t* l, int64_t start, int64_t end, sequence_t* from_) noexcept nogil
cdef int replay_log(log_t* l, int64_t start, int64_t end) noexcept nogil
cdef int replay_producers(log_t* l, int64_t start, int64_t end, sequence_t* into) noexcept nogil
cdef bint replay_has_marker(log_t* l, int64_t start, int64_t end) noexcept nogil
