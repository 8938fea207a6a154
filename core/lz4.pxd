# LZ4 frames undone without the GIL.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.block cimport block_t

# What the one frame in n bytes holds, after what is in `out`. 0; CORRUPT_MESSAGE if it is malformed, cut or followed by
# something; MESSAGE_TOO_LARGE if it holds more than `most` bytes; -ENOMEM.
cdef int lz4_frame(const uint8_t* p, size_t n, int64_t most, block_t* out) noexcept nogil
