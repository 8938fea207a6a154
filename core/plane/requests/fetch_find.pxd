# Finding the records of a Fetch, and what it waits for before.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.partition.partition cimport notify_fn
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.limits.quota_bucket cimport quota_bucket_t
from pybroker.core.plane.limits.quotas cimport quotas_t
from pybroker.core.plane.requests.fetch_session cimport sessions_t, waiter_fn
from pybroker.core.plane.requests.fetch_wire cimport fetch_t
from pybroker.core.storage.background.cold_reads cimport warmed_fn

cdef struct fetcher_t:           # the state that a reactor fetches with
    fetch_t request
    registry_t* registry
    sessions_t* sessions
    int64_t bytes_max            # of a response
    int32_t replica_listener     # for other brokers; -1 none
    int32_t rack_length          # of this broker; -1: consumers fetch from leaders only
    const uint8_t* rack
    int32_t noting               # a follower's Fetch is executed for the first time: record its fetch positions
    int64_t now_ms
    const int64_t* quotas        # the number of the quotas in force; 0: there are none
    quotas_t* counted            # the client's buckets; NULL: none
    quota_bucket_t* throttle     # of what followers fetch of throttled partitions; NULL: no limit
    notify_fn notify             # called by the watches of a waiting Fetch
    waiter_fn news               # by its session, when that has news
    warmed_fn warmed             # and by its reader
    int64_t errors               # partitions answered with an error, since the start
    uint8_t* instead             # DECLINED: the frame for Python, to be freed; NULL: the received one
    int64_t instead_bytes

cdef bint fetch_is_near(const fetcher_t* f) noexcept nogil
cdef bint fetch_find(fetcher_t* f, bint* settled) noexcept nogil
cdef void fetch_let_go(fetch_t* q) noexcept nogil
cdef bint fetch_operation(conn_t* c, operation_t** op) noexcept nogil
cdef bint fetch_is_slow(const fetch_t* q) noexcept nogil
cdef bint fetch_is_read_first(fetcher_t* f, conn_t* c, operation_t** op) noexcept nogil
cdef bint fetch_is_throttled(fetcher_t* f, conn_t* c) noexcept nogil
cdef void fetch_await_reader(fetcher_t* f, operation_t* op, bint again, int64_t now_ms) noexcept nogil
cdef void fetch_await_records(fetcher_t* f, operation_t* op, bint again, int64_t now_ms) noexcept nogil
