# The quota buckets of a connection's client id, as found by Python: kept until quotas change.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.plane.limits.quota_bucket cimport quota_bucket_t

cdef enum:
    QUOTA_ID_MAX = 256           # bytes of a client id; a request with a longer one always goes to Python

cdef struct quotas_t:            # only the reactor of its connection touches it
    int64_t number               # of the quotas that the buckets belong to
    quota_bucket_t* produce      # held; NULL: no limit. For bytes of requests,
    quota_bucket_t* fetch        # bytes of responses,
    quota_bucket_t* request      # nanoseconds of threads
    int32_t id_length
    uint8_t id[<int>QUOTA_ID_MAX]

cdef void quotas_free(quotas_t* q) noexcept nogil

# True if the buckets of a request are known, in the quotas of this number. The frame is without its size.
cdef bint quotas_know(const quotas_t* q, int64_t number, const uint8_t* frame, int64_t n) noexcept nogil

# Record a Produce; how long its client has to wait, in ms. Without a response, the request quota is not checked.
cdef int64_t quotas_produced(quotas_t* q, int64_t n, bint answered, int64_t now_ms) noexcept nogil

# Record the response of a Fetch; the same. `refused`: it must be empty, and was not recorded.
cdef int64_t quotas_fetched(quotas_t* q, int64_t n, int64_t now_ms, bint* refused) noexcept nogil

# The most bytes that the response of a Fetch may have.
cdef int64_t quotas_fetch_max(const quotas_t* q, int64_t now_ms) noexcept nogil
