# Produce without Python: decode, check, answer; the appends of one turn are made at its end.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.partition.append cimport checked_t
from pybroker.core.partition.partition cimport notify_fn, partition_t
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.connection.timer cimport timers_t
from pybroker.core.plane.requests.nodes cimport leaders_t
from pybroker.core.plane.requests.verdict cimport verdict_t
from pybroker.core.storage.background.group_commit cimport synced_fn

cdef enum:
    ORDERS_MAX = 1024            # batches of one turn; a request with more goes to Python
    DIRTY_SLOTS = 2048           # of the hash table of a turn's partitions
    PLAIN_SHARE = 1 << 20        # a connection's share of a turn, in decompressed bytes

cdef struct order_t:
    checked_t checked
    partition_t* partition
    conn_t* conn                 # for acks=0, where an error can be reported only by closing
    uint8_t* answer              # error_code, base_offset, ... of the partition in the response; NULL: no response
    int16_t version
    int32_t first                # the first order of the same request, in the turn's orders
    int64_t begin                # position of the request's response in the output of the connection
    int32_t refused              # the partition is led elsewhere: by `leader`, in `leader_epoch`; -1 unknown
    int32_t leader
    int32_t leader_epoch
    int64_t sync_end             # the offset that must be on disk before the response; -1 none
    int64_t acks_by_ms           # acks=all: the deadline for the replicas; -1: do not wait for replicas

cdef struct dirty_t:
    partition_t* partition
    checked_t* first
    checked_t* last

cdef struct turn_t:              # the appends that a reactor gathers for the end of its turn
    int32_t count
    int32_t dirty_count
    leaders_t leaders            # named in the response being written
    synced_fn synced             # called when a response need not wait for the disk any longer
    notify_fn told               # called when a partition moved on that a response waits for
    timers_t* timers             # of the reactor
    int64_t now_ms               # monotonic
    int64_t began_ns             # of the last drain: its appends began,
    int64_t appended_ns          # and ended
    int32_t drained              # requests of the last drain,
    int32_t awaited              # and those of them that wait
    int64_t errors               # partitions answered with an error, since the start
    int64_t plain_bytes          # decompressed bytes, since the start
    int64_t plain_most           # the value of plain_bytes at which the served connection's share is used up
    order_t orders[<int>ORDERS_MAX]
    dirty_t* dirty[<int>ORDERS_MAX]
    dirty_t slots[<int>DIRTY_SLOTS]

cdef inline void turn_share(turn_t* t) noexcept nogil:
    """Begin the share of the next connection."""
    t.plain_most = t.plain_bytes + PLAIN_SHARE


cdef inline bint turn_spent(const turn_t* t) noexcept nogil:
    """True if the connection's share is used up; its other requests wait for the next turn."""
    return t.plain_bytes > t.plain_most


cdef verdict_t produce(turn_t* t, registry_t* reg, conn_t* c, cursor_t* r, int16_t version) noexcept nogil
cdef bint produce_is_settled(operation_t* op, int64_t now_ms) noexcept nogil
cdef int produce_tell_errors(operation_t* op) noexcept nogil
cdef bint produce_drain(turn_t* t, int64_t now_ms) noexcept nogil
