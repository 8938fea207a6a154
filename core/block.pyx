"""Blocks that Python borrows: NumPy and Arrow read them in place, and they live as long as anybody does.

Fresh memory costs more than decoding into it: the system clears each page at its first touch, 0.2 us and more for 4 KiB,
and an allocator gives large pieces back at once. So the blocks of one pair of Columns return to its pool.
"""

from cpython.buffer cimport PyBuffer_FillInfo

cimport cython

cdef char NOTHING = 0  # what an empty block points to: some readers refuse NULL


@cython.no_gc
cdef class Pool:
    """Memory that was used and will be again, SPARE_BYTES_MAX of it at most; whoever calls it has the GIL."""

    def __dealloc__(self):
        cdef int slot, i
        for slot in range(SLOTS):
            for i in range(SPARES):
                block_free(&self.spares[slot][i])

    cdef void give(self, block_t* b) noexcept:
        """Keep the memory of a block that nobody reads any more, or free it."""
        cdef int i
        if b.data != NULL and b.capacity <= SPARE_BYTES_MAX - self.nbytes:
            for i in range(SPARES):
                if self.spares[b.slot][i].data == NULL:
                    self.spares[b.slot][i] = b[0]
                    self.nbytes += b.capacity
                    block_clear(b, 0)
                    return
        block_free(b)

    cdef void take(self, block_t* b) noexcept:
        """Give an empty block memory that its slot had before, if there is any."""
        cdef block_t* spare
        cdef int i
        if b.data != NULL:
            return
        for i in range(SPARES):
            spare = &self.spares[b.slot][i]
            if spare.data != NULL:
                b.data = spare.data
                b.capacity = spare.capacity
                self.nbytes -= spare.capacity
                block_clear(spare, 0)
                return


@cython.no_gc
cdef class Block:
    """Bytes that core made, behind the buffer protocol: read-only, freed with the last view of them."""

    def __init__(self) -> None:
        raise TypeError("a Block comes out of core")

    def __dealloc__(self):
        if self.pool is not None:
            self.pool.give(&self.b)
        else:
            block_free(&self.b)

    def __len__(self) -> int:
        return self.b.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.b.data if self.b.data != NULL else <void*>&NOTHING, self.b.size, True, flags)


cdef Block block_take(block_t* b, Pool pool):
    cdef Block block = Block.__new__(Block)
    block.b = b[0]
    block.pool = pool
    block_clear(b, block.b.size)
    return block
