# Decompression of LZ4 frames without the GIL.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.block cimport block_t

# Append the content of the frame in n bytes to `out`. 0; CORRUPT_MESSAGE if it is malformed or cut; MESSAGE_TOO_LARGE
# if it holds more than `most` bytes; -ENOMEM. `checked`: CORRUPT_MESSAGE also if the content's checksum or size is
# wrong, if bytes follow, and for an empty block; otherwise these are treated as by Java's reader.
cdef int lz4_frame(const uint8_t* p, size_t n, int64_t most, bint checked, block_t* out) noexcept nogil

# Decompress a frame into the `room` bytes at `to`, after which 64 more may be written. It accepts only frames that all
# of Kafka's clients can read: blocks must be independent, for Java, and a checksum of the content must be right, for
# Python's libraries. Return the number of bytes, -1 if the frame is refused.
cdef int64_t lz4_undo(const uint8_t* p, size_t n, uint8_t* to, int64_t room) noexcept nogil
