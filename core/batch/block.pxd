"""Memory that grows while it is written and belongs to Python afterwards."""

from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

cdef enum:
    # Allocated beyond the capacity: a copy in whole words may write past its end.
    BLOCK_SLACK = 64
    SPARE_BYTES_MIN = 64 << 10  # smaller blocks are cached by the allocator

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    /* Copy n bytes in steps of 32; the target has slack, the source where `room` says so. */
    static inline void pyb_copy(uint8_t *to, const uint8_t *from, int64_t n, int64_t room) {
        int64_t i = 0;
        if (n > 512 || room < n + 31) { memcpy(to, from, (size_t)n); return; }
        do { memcpy(to + i, from + i, 32); i += 32; } while (i < n);
    }
    """
    void copy "pyb_copy" (uint8_t* to, const uint8_t* source, int64_t n, int64_t room) noexcept nogil

cdef struct block_t:
    uint8_t* data  # NULL while capacity is 0
    int64_t size  # bytes in use
    int64_t capacity
    int64_t hint  # the least size of the first allocation

cdef bint spare_take(block_t* b, int64_t least) noexcept nogil
cdef bint spare_give(block_t* b) noexcept nogil


cdef inline void block_init(block_t* b, int64_t hint) noexcept nogil:
    b.data = NULL
    b.size = 0
    b.capacity = 0
    b.hint = hint


cdef inline int block_room(block_t* b, int64_t more) noexcept nogil:
    """Make room for `more` bytes after `size`, and BLOCK_SLACK; 0 or -ENOMEM. Pages use memory only once written."""
    cdef int64_t capacity
    cdef void* data
    if more <= b.capacity - b.size:
        return 0
    capacity = max(b.size + more, b.hint if b.data == NULL else b.capacity + b.capacity // 2)
    if b.data == NULL and capacity >= SPARE_BYTES_MIN and spare_take(b, capacity):
        return 0
    data = realloc(b.data, <size_t>(capacity + BLOCK_SLACK))
    if data == NULL:
        return -ENOMEM
    b.data = <uint8_t*>data
    b.capacity = capacity
    return 0


cdef inline void block_free(block_t* b) noexcept nogil:
    if b.capacity < SPARE_BYTES_MIN or not spare_give(b):
        free(b.data)
    block_init(b, 0)


cdef inline void block_fit(block_t* b) noexcept nogil:
    """Shrink a finished block, so that little data does not keep a large block alive."""
    cdef uint8_t* data
    if b.capacity < SPARE_BYTES_MIN or b.size > b.capacity // 2:
        return
    data = <uint8_t*>malloc(<size_t>(b.size + BLOCK_SLACK))
    if data == NULL:
        return
    memcpy(data, b.data, <size_t>b.size)
    if not spare_give(b):
        free(b.data)
    b.data = data
    b.capacity = b.size


cdef inline void block_trim(block_t* b) noexcept nogil:
    """Shrink a finished block that was allocated for the worst case: a small one in place; a large one only if more
    than three quarters are unused, as it will be reused as a spare."""
    cdef void* data
    if b.capacity >= SPARE_BYTES_MIN:
        if b.size < b.capacity // 4:
            block_fit(b)
        return
    data = realloc(b.data, <size_t>(b.size + BLOCK_SLACK))
    if data != NULL:
        b.data = <uint8_t*>data
        b.capacity = b.size


cdef class Block:
    cdef block_t b

# Pass the block to Python: `b` is empty then, and its next allocation will be as large.
cdef Block block_take(block_t* b)
