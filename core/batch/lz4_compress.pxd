# Compression of LZ4 frames without the GIL, by the liblz4 that is found.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.block cimport block_t

cdef struct preferences_t:
    # LZ4F_preferences_t, as liblz4 has had it since 1.8.
    int block_size
    int block_mode
    int content_checksum
    int frame_type
    unsigned long long content_size
    unsigned dictionary
    int block_checksum
    int level
    unsigned auto_flush
    unsigned favor_decompression
    unsigned reserved[3]


cdef class Lz4Compressor:
    cdef preferences_t how

    # The largest size of a frame with n bytes of content.
    cdef int64_t frame_bytes_max(self, int64_t n) noexcept nogil

    # Append a frame to `out`, which has room for it. 0, or -ENOMEM.
    cdef int add_frame(self, const uint8_t* p, int64_t n, block_t* out) noexcept nogil
