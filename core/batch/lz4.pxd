# LZ4 frames undone without the GIL.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.block cimport block_t

# What the frame in n bytes holds, after what is in `out`. 0; CORRUPT_MESSAGE if it is malformed or cut;
# MESSAGE_TOO_LARGE if it holds more than `most` bytes; -ENOMEM. `checked`: CORRUPT_MESSAGE, too, where checksum or size
# of the content are wrong, where something follows, and for a block of no bytes; else these are as for Java's reader.
cdef int lz4_frame(const uint8_t* p, size_t n, int64_t most, bint checked, block_t* out) noexcept nogil

# The same into the `room` bytes at `to`, behind which 64 more may be written, for who must take nothing that one of
# Kafka's clients refuses: blocks may not refer to each other, as Java reads no others, and a checksum of the content
# has to be right, as Python's libraries want it. How many bytes came out, -1 if none may.
cdef int64_t lz4_undo(const uint8_t* p, size_t n, uint8_t* to, int64_t room) noexcept nogil
