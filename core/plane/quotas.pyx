"""Quotas of a connection's client, so that the network thread need not ask where it counts.

    unknown ──Python executes the request, and finds its buckets──> its answer brings them ──> executed here from now on
      ^─── another client id comes, quotas change, or a bucket was dropped for having been idle ───┘
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcmp

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.cursor cimport load_be16
from pybroker.core.plane.quota_bucket cimport (
    bucket_drop, bucket_most, bucket_record, bucket_take, bucket_throttle, quota_bucket_t,
)

cdef enum:
    ID_AT = 10                   # behind api key, version, correlation id and its length
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
    if q == NULL or q.number != number or n < ID_AT:
        return False
    length = max(<int16_t>load_be16(frame + ID_AT - 2), <int16_t>0)  # null is as empty
    if length != q.id_length or n < ID_AT + length or memcmp(q.id, frame + ID_AT, length) != 0:
        return False
    return is_current(q.produce) and is_current(q.fetch) and is_current(q.request)


cdef int64_t quotas_produced(quotas_t* q, int64_t n, bint answered, int64_t now_ms) noexcept nogil:
    cdef int64_t throttle_ms = bucket_record(q.produce, n, now_ms) if q.produce != NULL else 0
    if q.request != NULL and answered:
        throttle_ms = max(throttle_ms, bucket_throttle(q.request, now_ms))
    return throttle_ms


cdef int64_t quotas_fetched(quotas_t* q, int64_t n, int64_t now_ms, bint* refused) noexcept nogil:
    """An answer that waits for the time of threads alone is empty, too, and not counted."""
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
