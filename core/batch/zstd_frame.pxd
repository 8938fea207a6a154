# The check that a zstd frame can be read by every client's library.
from libc.stdint cimport uint64_t, uint8_t

cdef extern from *:
    """
    #define PYBROKER_CONTENT_UNKNOWN (~(uint64_t)0)
    """
    const uint64_t CONTENT_UNKNOWN "PYBROKER_CONTENT_UNKNOWN"    # as ZSTD_CONTENTSIZE_UNKNOWN

# True if n bytes are one frame whose headers every library accepts; newer libraries refuse some that older ones read.
# `window`: how far back its sequences may reach. `content`: the content's size in the header, or CONTENT_UNKNOWN.
cdef bint zstd_is_strict(const uint8_t* p, size_t n, uint64_t* window, uint64_t* content) noexcept nogil
