# Publish, pin, quiesce, free: memory that a reader may hold is freed only after the reader has left.
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.types cimport pid_t

from pybroker.core.base.pthread cimport pthread_mutex_t

ctypedef void (*free_fn)(void*) noexcept nogil

cdef enum:
    PINS = 64            # slots of a block
    PIN_BLOCKS = 128     # the maximum; once all slots are taken, the next pin waits for one

cdef struct pin_t:
    int64_t era         # the era in which its reader entered; 0 free
    uint8_t padding[56]  # a cache line each

cdef struct pins_t:
    pin_t pins[<int>PINS]

cdef struct retired_t:
    int64_t era
    void* object
    free_fn free
    retired_t* next

cdef struct reclaim_t:
    int64_t era         # grows with every retirement
    pins_t first         # the first block
    pins_t* blocks[<int>PIN_BLOCKS]  # the first one, and those added when all slots were taken
    int32_t count        # of blocks; blocks are never removed
    pthread_mutex_t lock # guards the list only
    retired_t* retired

cdef void reclaim_init(reclaim_t* q) noexcept nogil
cdef void reclaim_destroy(reclaim_t* q) noexcept nogil
cdef int pin(reclaim_t* q) noexcept nogil
cdef void unpin(reclaim_t* q, int slot) noexcept nogil
cdef void retire(reclaim_t* q, void* object, free_fn free) noexcept nogil
cdef int collect(reclaim_t* q) noexcept nogil
