"""Blocks that Python borrows: NumPy and Arrow read them in place, and they live as long as a view of them does.

Fresh memory costs more than encoding or decoding into it: the system clears each page at its first touch, which takes
0.2 us and more for 4 KiB, and an allocator returns large blocks to the system at once. So large unused blocks are kept
here as spares, for any thread.
"""

from cpython.buffer cimport PyBuffer_FillInfo

cimport cython

from pybroker.core.base.pthread cimport pthread_mutex_init, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_unlock

cdef extern from *:
    """
    #if defined(__SANITIZE_ADDRESS__)
    #define KEEPS_BLOCKS 0 /* a reused block would hide a use after free */
    #else
    #define KEEPS_BLOCKS 1
    #endif
    """
    bint KEEPS_BLOCKS

cdef enum:
    SPARES = 64
    SPARE_BYTES_MAX = 64 << 20  # of the process

cdef char NOTHING = 0  # an empty block points here, as some readers refuse NULL
cdef pthread_mutex_t lock
cdef block_t spares[<int>SPARES]
cdef int64_t spare_bytes = 0
cdef int oldest = 0  # the next to give back to the allocator

pthread_mutex_init(&lock, NULL)


cdef bint spare_take(block_t* b, int64_t least) noexcept nogil:
    """Give an empty block a spare's memory: the smallest with at least `least` bytes, but fewer than 4 * least."""
    global spare_bytes
    cdef block_t* best = NULL
    cdef int i
    if not KEEPS_BLOCKS or pthread_mutex_trylock(&lock) != 0:
        return False  # another thread has the lock, or had it when this process was forked
    for i in range(SPARES):
        if least <= spares[i].capacity < 4 * least and (best == NULL or spares[i].capacity < best.capacity):
            best = &spares[i]
    if best != NULL:
        b.data = best.data
        b.capacity = best.capacity
        spare_bytes -= best.capacity
        block_init(best, 0)
    pthread_mutex_unlock(&lock)
    return best != NULL


cdef bint spare_give(block_t* b) noexcept nogil:
    """Keep the memory of a block as a spare; the oldest spares are freed to make room for it."""
    global spare_bytes, oldest
    if not KEEPS_BLOCKS or b.capacity > SPARE_BYTES_MAX or pthread_mutex_trylock(&lock) != 0:
        return False
    while True:
        free(spares[oldest].data)
        spare_bytes -= spares[oldest].capacity
        block_init(&spares[oldest], 0)
        if spare_bytes + b.capacity <= SPARE_BYTES_MAX:
            break
        oldest = (oldest + 1) % SPARES
    spares[oldest] = b[0]
    spare_bytes += b.capacity
    oldest = (oldest + 1) % SPARES
    pthread_mutex_unlock(&lock)
    return True


@cython.no_gc
cdef class Block:
    """Bytes from core, behind the buffer protocol: read-only, freed with the last view of them."""

    def __init__(self) -> None:
        raise TypeError("a Block comes out of core")

    def __dealloc__(self):
        block_free(&self.b)

    def __len__(self) -> int:
        return self.b.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.b.data if self.b.data != NULL else <void*>&NOTHING, self.b.size, True, flags)


cdef Block block_take(block_t* b):
    cdef Block block = Block.__new__(Block)
    block_fit(b)
    block.b = b[0]
    block_init(b, block.b.size)
    return block
