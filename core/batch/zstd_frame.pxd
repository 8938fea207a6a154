# What a zstd frame must be like for every client's library to read it.
from libc.stdint cimport uint64_t, uint8_t

# One frame in n bytes, as its headers tell: False where a library of today refuses what one of yesterday reads.
# `window`: how far back its sequences may reach. `content`: the size that it says it has, all bits set if it says none.
cdef bint zstd_is_strict(const uint8_t* p, size_t n, uint64_t* window, uint64_t* content) noexcept nogil
