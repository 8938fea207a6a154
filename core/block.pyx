"""Blocks that Python borrows: NumPy and Arrow read them in place, and they live as long as anybody does."""

from cpython.buffer cimport PyBuffer_FillInfo

cdef char NOTHING = 0  # what an empty block points to: some readers refuse NULL


cdef class Block:
    """Bytes that a column is made of, behind the buffer protocol: read-only, freed with the last view of them."""

    def __init__(self) -> None:
        raise TypeError("a Block comes out of columns")

    def __dealloc__(self):
        block_free(&self.b)

    def __len__(self) -> int:
        return self.b.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.b.data if self.b.data != NULL else <void*>&NOTHING, self.b.size, True, flags)


cdef Block block_take(block_t* b):
    cdef Block block = Block.__new__(Block)
    block.b = b[0]
    block_init(b, block.b.size)
    return block
