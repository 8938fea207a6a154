# Where the client of a connection counts, as Python has found for its client id: kept until quotas change.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.plane.quota_bucket cimport quota_bucket_t

cdef enum:
    QUOTA_ID_MAX = 256           # bytes of a client id; who says more is Python's at each request

cdef struct quotas_t:            # only the reactor of its connection touches it
    int64_t number               # of the quotas that they follow from
    quota_bucket_t* produce      # held; NULL: no limit. Bytes of requests,
    quota_bucket_t* fetch        # bytes of answers,
    quota_bucket_t* request      # nanoseconds of threads
    int32_t id_length
    uint8_t id[<int>QUOTA_ID_MAX]

cdef void quotas_free(quotas_t* q) noexcept nogil

# Is it known where a request counts, by the quotas of this number? A frame without its size.
cdef bint quotas_know(const quotas_t* q, int64_t number, const uint8_t* frame, int64_t n) noexcept nogil

# Count a Produce; how long its client has to wait, in ms. Without an answer the time of threads is not asked for.
cdef int64_t quotas_produced(quotas_t* q, int64_t n, bint answered, int64_t now_ms) noexcept nogil

# Count the answer of a Fetch; the same. `refused`: it must be empty, and was not counted.
cdef int64_t quotas_fetched(quotas_t* q, int64_t n, int64_t now_ms, bint* refused) noexcept nogil

# The most bytes that the answer of a Fetch is to have.
cdef int64_t quotas_fetch_max(const quotas_t* q, int64_t now_ms) noexcept nogil
