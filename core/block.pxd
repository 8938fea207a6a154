"""Memory that grows while it is written and belongs to Python afterwards."""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc

cdef enum:
    # Beyond what was asked for: a copy in whole words may step over the end of what it copies.
    BLOCK_SLACK = 64

cdef struct block_t:
    uint8_t* data  # NULL while capacity is 0
    int64_t size  # bytes that count
    int64_t capacity
    int64_t hint  # the first allocation holds as much, if more was not asked for
    int32_t slot  # whose spare memory of a pool it may begin with


cdef inline void block_clear(block_t* b, int64_t hint) noexcept nogil:
    b.data = NULL
    b.size = 0
    b.capacity = 0
    b.hint = hint


cdef inline void block_init(block_t* b, int64_t hint) noexcept nogil:
    block_clear(b, hint)
    b.slot = 0


cdef inline int block_room(block_t* b, int64_t more) noexcept nogil:
    """Make room for `more` bytes after `size`, and BLOCK_SLACK; 0 or -ENOMEM. Pages are taken as they are written."""
    cdef int64_t capacity
    cdef void* data
    if more <= b.capacity - b.size:
        return 0
    capacity = max(b.size + more, b.hint if b.data == NULL else b.capacity + b.capacity // 2)
    data = realloc(b.data, <size_t>(capacity + BLOCK_SLACK))
    if data == NULL:
        return -ENOMEM
    b.data = <uint8_t*>data
    b.capacity = capacity
    return 0


cdef inline void block_free(block_t* b) noexcept nogil:
    free(b.data)
    block_clear(b, 0)


cdef enum:
    SLOTS = 17  # one for each block of columns, and one for what a feed decompresses into
    SCRATCH_SLOT = SLOTS - 1
    SPARES = 2  # of a slot: one is read while the other is filled
    SPARE_BYTES_MAX = 64 << 20

cdef class Pool:
    cdef block_t spares[<int>SLOTS][<int>SPARES]
    cdef int64_t nbytes
    cdef void give(self, block_t* b) noexcept
    cdef void take(self, block_t* b) noexcept

cdef class Block:
    cdef block_t b
    cdef Pool pool  # where the memory goes in the end; None: to the allocator

# Python's from here on: `b` is empty, and will begin as large as it was.
cdef Block block_take(block_t* b, Pool pool)
