"""Quota buckets for Python, which decides what clients share one; the plane records usage in them, too."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from pybroker.core.base.atomic cimport load_i32, load_i64, store_i32
from pybroker.core.plane.limits.quota_bucket cimport (
    bucket_drop, bucket_hold, bucket_most, bucket_new, bucket_record, bucket_set_limit, bucket_take, bucket_throttle,
    bucket_wait, quota_bucket_t,
)
from pybroker.core.plane.limits.quotas cimport QUOTA_ID_MAX, quotas_t


cdef class QuotaBucket:
    """The recent usage of a quota; see quota_bucket.pyi."""

    def __cinit__(self, double limit, *, int64_t throttle_ms_max=INT32_MAX, bint paced=True, int32_t burst_ms=0):
        if not limit >= 0 or not 0 <= throttle_ms_max <= INT32_MAX or burst_ms < 0:
            raise ValueError(f"{limit=}, {throttle_ms_max=} and {burst_ms=} must be 0 or more")
        self.state = bucket_new(limit, throttle_ms_max, paced, burst_ms)
        if self.state == NULL:
            raise MemoryError()

    def __dealloc__(self):
        bucket_drop(self.state)

    def set_limit(self, double limit) -> None:
        bucket_set_limit(self.state, limit)

    def record(self, int64_t n, int64_t now_ms) -> int:
        return bucket_record(self.state, n, now_ms)

    def take(self, int64_t n, int64_t now_ms) -> tuple:
        cdef bint refused = False
        cdef int64_t throttle_ms = bucket_take(self.state, n, now_ms, &refused)
        return throttle_ms, refused

    def wait(self, int64_t now_ms) -> int:
        return bucket_wait(self.state, now_ms)

    def throttle(self, int64_t now_ms) -> int:
        return bucket_throttle(self.state, now_ms)

    @property
    def retired(self) -> bool:
        return load_i32(&self.state.retired) != 0

    def retire(self) -> None:
        store_i32(&self.state.retired, 1)

    @property
    def last_ms(self) -> int:
        return load_i64(&self.state.last_ms)

    def most(self, int64_t now_ms) -> int:
        return bucket_most(self.state, now_ms)

    @property
    def throttled(self) -> tuple:
        return load_i64(&self.state.throttled), load_i64(&self.state.throttled_ms)


cdef quota_bucket_t* held(QuotaBucket bucket) noexcept:
    if bucket is None:
        return NULL
    bucket_hold(bucket.state)
    return bucket.state


cdef quotas_t* quotas_told(object told) except? NULL:
    cdef quotas_t* q
    cdef bytes client_id
    if told is None:
        return NULL
    number, client_id, produce, fetch, request = told
    if len(client_id) > QUOTA_ID_MAX:
        raise ValueError(f"a client id with quotas has at most {QUOTA_ID_MAX} bytes, not {len(client_id)}")
    q = <quotas_t*>calloc(1, sizeof(quotas_t))
    if q == NULL:
        raise MemoryError()
    q.number = number
    q.id_length = <int>len(client_id)
    memcpy(q.id, <const char*>client_id, len(client_id))
    q.produce, q.fetch, q.request = held(produce), held(fetch), held(request)
    return q
