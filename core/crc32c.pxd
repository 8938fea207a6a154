"""CRC-32C of bytes, in the fastest form that the processor at hand has; see crc32c_impl.h."""

from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t crc32c(const uint8_t* p, size_t n, uint32_t initial) noexcept nogil
