# What a compressed batch holds, undone without the GIL, where that is quickly done.
from libc.stdint cimport int64_t, uint8_t

cdef struct decompressor_t:
    uint8_t* plain      # what came out last
    void* inflate
    void* zstd
    decompressor_t* next

# One that nobody uses; NULL without memory. `decompressor_give` ends its use.
cdef decompressor_t* decompressor_take() noexcept nogil
cdef void decompressor_give(decompressor_t* d) noexcept nogil

# Undo n bytes of a batch's codec into d.plain: how many came out, or -1 where another must look: they are damaged,
# become more than PLAIN_BYTES of their codec, or are of a kind that is not read here.
cdef int64_t decompress(decompressor_t* d, int codec, const uint8_t* p, size_t n) noexcept nogil
