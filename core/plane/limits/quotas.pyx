"""Quotas of a connection's client, so that the network thread can record usage without Python.

    unknown ──Python executes the request, and finds its buckets──> its reply brings them ──> executed here from now on
      ^─── the client id changes, quotas change, or an idle bucket was dropped ───────────────────────┘
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcmp

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.cursor cimport load_be16
from pybroker.core.base.frame cimport AT_CLIENT_ID, AT_CLIENT_ID_LENGTH
from pybroker.core.plane.limits.quota_bucket cimport (
    bucket_drop, bucket_most, bucket_record, bucket_take, bucket_throttle, quota_bucket_t,
)

cdef enum:
    BYTES_MAX = 0x7FFFFFFF


cdef void quotas_free(quotas_t* q) noexcept nogil:
    if q != NULL:
        bucket_drop(q.produce)
        bucket_drop(q.fetch)
        bucket_drop(q.request)
        free(q)


cdef inline bint is_current(const quota_bucket_t* b) noexcept nogil:
    return b == NULL or not load_i32(&b.retired)


cdef bint quotas_know(const quotas_t* q, int64_t number, const uint8_t* frame, int64_t n) noexcept nogil:
    cdef int32_t length
    if q == NULL or q.number != number or n < AT_CLIENT_ID:
        return False
    length = max(<int16_t>load_be16(frame + AT_CLIENT_ID_LENGTH), <int16_t>0)  # null counts as empty
    if length != q.id_length or n < AT_CLIENT_ID + length or memcmp(q.id, frame + AT_CLIENT_ID, length) != 0:
        return False
    return is_current(q.produce) and is_current(q.fetch) and is_current(q.request)


cdef int64_t quotas_produced(quotas_t* q, int64_t n, bint answered, int64_t now_ms) noexcept nogil:
    cdef int64_t throttle_ms = bucket_record(q.produce, n, now_ms) if q.produce != NULL else 0
    if q.request != NULL and answered:
        throttle_ms = max(throttle_ms, bucket_throttle(q.request, now_ms))
    return throttle_ms


cdef int64_t quotas_fetched(quotas_t* q, int64_t n, int64_t now_ms, bint* refused) noexcept nogil:
    """A response held back only by the request quota is empty, too, and not recorded."""
    cdef int64_t throttle_ms = 0
    refused[0] = False
    if q.request != NULL:
        throttle_ms = bucket_throttle(q.request, now_ms)
        refused[0] = throttle_ms > 0
    if q.fetch == NULL:
        return throttle_ms
    if refused[0]:
        return max(throttle_ms, bucket_throttle(q.fetch, now_ms))
    return bucket_take(q.fetch, n, now_ms, refused)


cdef int64_t quotas_fetch_max(const quotas_t* q, int64_t now_ms) noexcept nogil:
    if q.fetch == NULL:
        return BYTES_MAX
    return min(bucket_most(q.fetch, now_ms), <int64_t>BYTES_MAX)
