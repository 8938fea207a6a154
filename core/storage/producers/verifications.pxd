# Producers whose next transactional batch a transaction coordinator is asked about (KIP-890).
from libc.stdint cimport int16_t, int32_t, int64_t

cdef enum:
    VERIFICATIONS_MAX = 16384    # of one log; a further one replaces another
    NO_GUARD = 0
    VERIFIED = -1                # as a guard: the batch needs none

cdef struct verification_t:
    int64_t id                   # of the producer; -1: a free slot
    int64_t guard
    int32_t lowest               # the lowest first sequence that was asked about
    int16_t epoch

cdef struct verifications_t:     # empty when zeroed; under the append mutex
    verification_t* table        # open addressing, linear probing, a power of two
    int32_t capacity
    int32_t count
    int64_t guards               # given so far

cdef void verifications_free(verifications_t* v) noexcept nogil
cdef int64_t verifications_ask(verifications_t* v, int64_t id, int16_t epoch, int32_t first) noexcept nogil
cdef const verification_t* verifications_find(const verifications_t* v, int64_t id) noexcept nogil
cdef void verifications_drop(verifications_t* v, int64_t id) noexcept nogil
