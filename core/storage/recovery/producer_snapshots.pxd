# The state of idempotent producers on disk: snapshots, completed from the log's batch headers.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t, snapshot_t
from pybroker.core.storage.producers.producer_state cimport sequence_t

cdef enum:
    TAIL_BYTES = 8 << 20     # of the log before a snapshot: its headers are read to refill the windows of five

cdef int producers_load(log_t* l, int64_t first, int64_t offset, int64_t* loaded, bint* torn) noexcept nogil
cdef int producers_find_waiting(log_t* l, int64_t first, int64_t end) noexcept nogil
cdef int64_t producers_tail(log_t* l, int64_t offset) noexcept nogil
cdef int producers_adopt(log_t* l, int64_t end) noexcept nogil
cdef int64_t producers_read(
    const log_t* l, int64_t first, int64_t at_most, sequence_t* into, bint* torn) noexcept nogil
cdef int producers_restore(log_t* l, int64_t end) noexcept nogil
cdef int producers_write(log_t* l, snapshot_t* p, bint durable) noexcept nogil
cdef snapshot_t* producers_take(log_t* l) noexcept nogil
cdef void producers_settle(log_t* l, snapshot_t* p, int64_t end) noexcept nogil
cdef void producers_keep(log_t* l, int64_t offset) noexcept nogil
cdef void producers_prune(log_t* l, int64_t newest_first) noexcept nogil
