# Decompression of small batches without the GIL.
from libc.stdint cimport int64_t, uint8_t

cdef struct decompressor_t:
    uint8_t* plain      # the last output
    void* inflate
    void* zstd
    decompressor_t* next

# Take an unused decompressor; NULL without memory. `decompressor_give` returns it.
cdef decompressor_t* decompressor_take() noexcept nogil
cdef void decompressor_give(decompressor_t* d) noexcept nogil

# Decompress n bytes into d.plain. Return the size of the output, or -1 if Python must decompress them: they are
# damaged, expand to more than the codec's PLAIN_BYTES, or use a feature that is not supported here.
cdef int64_t decompress(decompressor_t* d, int codec, const uint8_t* p, size_t n) noexcept nogil
