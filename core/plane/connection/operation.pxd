# Requests whose responses wait, while their connection goes on.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport link_t
from pybroker.core.partition.partition cimport partition_t, watch_t
from pybroker.core.plane.connection.conn cimport chunk_t, conn_t, inbox_t
from pybroker.core.plane.connection.timer cimport timer_t, timers_t
from pybroker.core.plane.requests.fetch_session cimport session_t, waiter_t
from pybroker.core.storage.background.group_commit cimport sync_t

cdef enum:
    NEVER = 0x7FFFFFFFFFFFFFFF   # a deadline

cdef struct parked_t:            # a partition that a waiting fetch watches
    watch_t watch
    partition_t* held

cdef struct awaited_t:           # a partition of a Produce whose response waits for its log, or for its replicas
    sync_t sync                  # its log is NULL: no wait for the disk
    watch_t watch
    partition_t* partition       # held
    int64_t end                  # the offset that the high watermark must reach; -1: no wait for replicas any more
    int64_t generation           # of its log: unless it changes, the appended batches are still there
    int32_t error                # the error code in its response
    uint8_t* answer              # the partition's response, in the output of the connection

cdef struct produce_wait_t:      # a Produce: its response is in the output already
    int64_t since_ns             # it waits since the end of its appends
    int16_t version              # of its response
    int32_t awaited_count
    awaited_t* awaited           # after the operation

cdef struct fetch_wait_t:        # a Fetch, which is executed again
    chunk_t* slot                # its response goes after this; NULL: a Produce
    int64_t began_ns
    uint8_t* frame               # its bytes without the size
    int64_t frame_bytes
    int64_t wait_at              # the position of max_wait_ms in it, and its value
    int32_t wait_ms
    int32_t parked_count
    parked_t* parked
    int32_t reading              # a reader will notify it
    int32_t warmed               # set by that reader, under the inbox's lock
    int32_t is_warm              # its records were read: do not check again whether they are cold
    int32_t is_declined          # it goes to Python once Python has no other request of the connection
    int32_t is_replica           # a follower's
    int32_t is_hurried           # its follower sent another Fetch, so it waits no longer
    int64_t first_ns             # when its first execution began; 0: it has not waited
    int64_t local_ns             # the time of its executions so far
    int32_t is_unnoted           # the follower's fetch position has not been recorded yet
    session_t* session           # of an incremental fetch, held
    waiter_t waiter              # in the session

cdef struct operation_t:         # a request whose response waits, and holds back those after it
    link_t listed                # in its connection's, in the order of their responses
    link_t due                   # in its reactor's: handle it in this turn
    link_t told                  # in the inbox
    conn_t* conn                 # NULL: it ended, answered or with its connection
    inbox_t* inbox               # of its reactor
    int32_t refs                 # of threads that will notify it, once each; under the inbox's lock
    timer_t timer                # at its deadline it is answered with what there is
    int64_t begin  # position of its response in the output of its connection, in bytes since it was accepted
    fetch_wait_t fetch
    produce_wait_t produce

cdef operation_t* operation_new(conn_t* c, int32_t awaited_count) noexcept nogil
cdef void operation_list(operation_t* op, int64_t begin) noexcept nogil
cdef void operation_leave_session(operation_t* op) noexcept nogil
cdef void operation_unwatch(operation_t* op) noexcept nogil
cdef int operation_keep_frame(operation_t* op, const uint8_t* frame, int64_t n) noexcept nogil
cdef void operation_tell(operation_t* op) noexcept nogil
cdef void operation_look(operation_t* op) noexcept nogil
cdef void operation_answered(operation_t* op, int64_t n) noexcept nogil
cdef void operation_end(timers_t* timers, operation_t* op) noexcept nogil
cdef void operations_end(timers_t* timers, conn_t* c) noexcept nogil


cdef inline operation_t* fetching_of(const conn_t* c) noexcept nogil:
    """The waiting Fetch of a connection; NULL: none."""
    return <operation_t*>c.requests.fetching


cdef inline operation_t* away_of(const conn_t* c) noexcept nogil:
    """The operation whose request is with Python; NULL: a request that had not waited, or none."""
    return <operation_t*>c.requests.away
