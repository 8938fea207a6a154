# The transactions of one log that hold back its last stable offset, in order.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.storage.producers.producer_state cimport sequence_t

cdef enum:
    NOTHING_OPEN = 0x7FFFFFFFFFFFFFFF  # more than any offset: there is no such transaction

cdef struct opened_t:
    int64_t first            # its first offset
    int32_t ended

cdef struct ended_t:
    int64_t first
    int64_t marker           # the offset of its marker

cdef struct transactions_t:  # empty when zeroed
    opened_t* open           # by first offset, ascending; neither the first nor most of them have ended
    int64_t head             # index of the first
    int64_t tail             # index after the last
    int64_t capacity
    int64_t ended            # ended ones among them
    ended_t* waiting         # by marker, and by first offset: only those that may become the oldest
    int64_t waiting_head
    int64_t waiting_tail
    int64_t waiting_capacity

cdef void transactions_free(transactions_t* t) noexcept nogil
cdef void transactions_cut(transactions_t* t, int64_t end) noexcept nogil
cdef int transactions_reserve(transactions_t* t, int64_t more) noexcept nogil
cdef int transactions_begin(transactions_t* t, int64_t first) noexcept nogil
cdef int transactions_end(transactions_t* t, int64_t first, int64_t marker, int64_t high_watermark) noexcept nogil
cdef int transactions_take(transactions_t* t, const sequence_t* producers) noexcept nogil
cdef void transactions_swap_waiting(transactions_t* t, transactions_t* other) noexcept nogil
cdef int64_t transactions_first_open(const transactions_t* t) noexcept nogil
cdef int64_t transactions_first_beside(const transactions_t* t, int64_t first) noexcept nogil
cdef int64_t transactions_first_waiting(transactions_t* t, int64_t high_watermark) noexcept nogil
