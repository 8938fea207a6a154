"""CRC-32C of bytes by the fastest form that this processor has; see crc32c_impl.h."""

from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t crc32c(const uint8_t* p, size_t n, uint32_t initial) noexcept nogil

# The CRC of two stretches from the CRC of each; the second has n bytes. It costs less than the CRC of 10 KB.
cdef uint32_t crc32c_join(uint32_t first, uint32_t second, uint32_t n) noexcept nogil
