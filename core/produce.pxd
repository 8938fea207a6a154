# Produce without Python: parse, check, answer; the appends of one turn wait for its end.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.append cimport ready_t
from pybroker.core.conn cimport conn_t
from pybroker.core.cursor cimport cursor_t
from pybroker.core.partition cimport partition_t
from pybroker.core.registry cimport registry_t
from pybroker.core.syncer cimport sync_t, synced_fn

cdef enum:
    ORDERS_MAX = 1024            # batches that one turn may hold back; a request with more goes to Python
    DIRTY_SLOTS = 2048           # of the hash table that finds a turn's partitions

cdef enum verdict_t:
    DONE                         # executed; its answer is in the connection's output
    DECLINED                     # Python knows what to do with it
    WAITS                        # parked
    REFUSED                      # close the connection

cdef struct order_t:
    ready_t ready
    partition_t* partition
    conn_t* conn                 # for acks=0, where an error can only be told by closing
    uint8_t* answer              # error_code, base_offset, ... of its partition in the output; NULL: no answer
    int16_t version
    int64_t sync_end             # the offset that must be on disk before it is acknowledged; -1 none

cdef struct dirty_t:
    partition_t* partition
    ready_t* first
    ready_t* last

cdef struct turn_t:              # what a reactor holds back until the end of its turn
    int32_t count
    int32_t dirty_count
    synced_fn synced             # what is called when an acknowledgement need wait no longer
    int64_t errors               # partitions whose answer told one, since ever
    order_t orders[<int>ORDERS_MAX]
    dirty_t* dirty[<int>ORDERS_MAX]
    dirty_t slots[<int>DIRTY_SLOTS]

cdef int produce(turn_t* t, registry_t* reg, conn_t* c, cursor_t* r, int16_t version) noexcept nogil
cdef void produce_refuse(const sync_t* s) noexcept nogil
cdef bint produce_drain(turn_t* t, int64_t now_ms) noexcept nogil
