# Decompression of zstd frames without the GIL, by the libzstd that is found.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.block cimport block_t

ctypedef void* (*zstd_new_fn)() noexcept nogil
ctypedef size_t (*zstd_of_fn)(void* context) noexcept nogil
ctypedef size_t (*zstd_reset_fn)(void* context, int what) noexcept nogil
ctypedef size_t (*zstd_step_fn)(void* context, void* to, size_t room, const void* p, size_t n) noexcept nogil
ctypedef size_t (*zstd_stream_fn)(
    void* context, void* to, size_t room, size_t* made, const void* p, size_t n, size_t* taken) noexcept nogil
ctypedef unsigned long long (*zstd_content_fn)(const void* p, size_t n) noexcept nogil
ctypedef unsigned (*zstd_failed_fn)(size_t made) noexcept nogil

cdef struct zstd_t:
    zstd_new_fn new
    zstd_of_fn free
    zstd_of_fn size
    zstd_of_fn begin
    zstd_of_fn wanted
    zstd_reset_fn reset
    zstd_step_fn step
    zstd_stream_fn stream
    zstd_content_fn content
    zstd_failed_fn failed
    zstd_failed_fn error

# The functions of libzstd; NULL if it was not found.
cdef const zstd_t* zstd_library() noexcept nogil

# Append the content of the frames in n bytes to `out`. 0; CORRUPT_MESSAGE if they are malformed, cut or followed by
# other bytes; MESSAGE_TOO_LARGE if they hold more than `most` bytes; -ENOMEM.
cdef int zstd_frames(const uint8_t* p, size_t n, int64_t most, block_t* out) noexcept nogil
