# What a Fetch finds, and what it waits for before it looks.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.partition.partition cimport notify_fn
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.conn cimport conn_t, operation_t
from pybroker.core.plane.fetch_session cimport sessions_t, waiter_fn
from pybroker.core.plane.fetch_wire cimport fetch_t
from pybroker.core.plane.quota_bucket cimport quota_bucket_t
from pybroker.core.plane.quotas cimport quotas_t
from pybroker.core.storage.cold_reads cimport warmed_fn

cdef struct fetcher_t:           # what a reactor fetches with
    fetch_t request
    registry_t* registry
    sessions_t* sessions
    int64_t bytes_max            # of an answer
    int32_t replica_listener     # that other brokers come by; -1 none
    int32_t rack_length          # of this broker's; -1: consumers fetch from leaders only
    const uint8_t* rack
    int32_t noting               # a follower's Fetch is looked at for the first time: how far it is, is noted
    int64_t now_ms
    const int64_t* quotas        # the number of those that hold now; 0: there are none
    quotas_t* counted            # where the answer counts; NULL: nowhere
    quota_bucket_t* throttle     # of what followers fetch of throttled partitions; NULL: there is no such limit
    notify_fn notify             # what the watches of a Fetch that waits call
    waiter_fn news               # and its session's, when that has news
    warmed_fn warmed             # and who read for it
    int64_t errors               # partitions whose answer told one, since ever
    uint8_t* instead             # DECLINED: the frame that Python gets, to be freed; NULL: the one that came
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
