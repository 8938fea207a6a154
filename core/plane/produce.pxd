# Produce without Python: parse, check, answer; the appends of one turn wait for its end.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.partition.append cimport checked_t
from pybroker.core.partition.partition cimport notify_fn, partition_t
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.nodes cimport leaders_t
from pybroker.core.plane.conn cimport conn_t, operation_t
from pybroker.core.plane.timer cimport timers_t
from pybroker.core.storage.group_commit cimport synced_fn

cdef enum:
    ORDERS_MAX = 1024            # batches that one turn may hold back; a request with more goes to Python
    DIRTY_SLOTS = 2048           # of the hash table that finds a turn's partitions
    PLAIN_SHARE = 1 << 20        # a connection's share of a turn, in bytes that come out of compressed batches

cdef enum verdict_t:
    DONE                         # executed; its answer is in the connection's output
    DECLINED                     # Python knows what to do with it
    WAITS                        # for records
    REFUSED                      # close the connection

cdef struct order_t:
    checked_t checked
    partition_t* partition
    conn_t* conn                 # for acks=0, where an error can only be told by closing
    uint8_t* answer              # error_code, base_offset, ... of its partition in the output; NULL: no answer
    int16_t version
    int32_t first                # of its request, among the turn's orders
    int64_t begin                # of its request's answer in the output of the connection
    int32_t refused              # its partition is led elsewhere: by `leader`, in `leader_epoch`; -1 unknown
    int32_t leader
    int32_t leader_epoch
    int64_t sync_end             # the offset that must be on disk before it is acknowledged; -1 none
    int64_t acks_by_ms           # acks=all: when its client waits no longer for all replicas; -1: for ours alone

cdef struct dirty_t:
    partition_t* partition
    checked_t* first
    checked_t* last

cdef struct turn_t:              # what a reactor holds back until the end of its turn
    int32_t count
    int32_t dirty_count
    leaders_t leaders            # that the answer being written names
    synced_fn synced             # what is called when an acknowledgement need wait for the disk no longer
    notify_fn told               # and when a partition moved on for which one waits
    timers_t* timers             # of the reactor
    int64_t now_ms               # monotonic
    int64_t errors               # partitions whose answer told one, since ever
    int64_t plain_bytes          # that came out of compressed batches, since ever
    int64_t plain_most           # of them, when what is served now has had its share of the turn
    order_t orders[<int>ORDERS_MAX]
    dirty_t* dirty[<int>ORDERS_MAX]
    dirty_t slots[<int>DIRTY_SLOTS]

cdef inline void turn_share(turn_t* t) noexcept nogil:
    """The next connection begins."""
    t.plain_most = t.plain_bytes + PLAIN_SHARE


cdef inline bint turn_spent(const turn_t* t) noexcept nogil:
    """It had its share; the rest of its requests waits for the next turn."""
    return t.plain_bytes > t.plain_most


cdef int produce(turn_t* t, registry_t* reg, conn_t* c, cursor_t* r, int16_t version) noexcept nogil
cdef bint produce_is_settled(operation_t* op, int64_t now_ms) noexcept nogil
cdef int produce_tell_errors(operation_t* op) noexcept nogil
cdef bint produce_drain(turn_t* t, int64_t now_ms) noexcept nogil
