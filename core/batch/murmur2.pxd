"""MurmurHash2 with Kafka's seed, 32 bits: the hash by which Java's producer chooses the partition of a key."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    MURMUR_SEED = 0x9747B28C
    MURMUR_M = 0x5BD1E995


cdef inline uint32_t murmur2(const uint8_t* p, int64_t n) noexcept nogil:
    cdef uint32_t m = <uint32_t>MURMUR_M, h = <uint32_t>MURMUR_SEED ^ <uint32_t>n, k = 0
    cdef int64_t i, _
    for _ in range(n >> 2):
        k = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        k *= m
        k ^= k >> 24
        h = h * m ^ k * m
        p += 4
    if n & 3:
        k = 0
        for i in range(n & 3):
            k |= <uint32_t>p[i] << (8 * i)
        h = (h ^ k) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


cdef inline int32_t murmur2_partition(const uint8_t* key, int64_t n, int32_t partitions) noexcept nogil:
    return <int32_t>(murmur2(key, n) & INT32_MAX) % partitions
