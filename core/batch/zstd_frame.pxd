# What a zstd frame must be like for every client's library to read it.
from libc.stdint cimport uint64_t, uint8_t

cdef extern from *:
    """
    #define PYBROKER_CONTENT_UNKNOWN (~(uint64_t)0)
    """
    const uint64_t CONTENT_UNKNOWN "PYBROKER_CONTENT_UNKNOWN"    # as ZSTD_CONTENTSIZE_UNKNOWN

# One frame in n bytes, as its headers tell: False where a library of today refuses what one of yesterday reads.
# `window`: how far back its sequences may reach. `content`: the size that it claims, or CONTENT_UNKNOWN.
cdef bint zstd_is_strict(const uint8_t* p, size_t n, uint64_t* window, uint64_t* content) noexcept nogil
