"""The offset of each key's last record, for a log that is compacted.

A key is stored as its 128-bit hash: if two keys had the same hash, the older record would be lost. So the hash is keyed
(SipHash-2-4 with 128 bits, J.-P. Aumasson and D. J. Bernstein, 2012) with a secret drawn for each table: a client
cannot choose colliding keys, and with 2^32 random keys one table in 2^65 has a collision. Slots are probed linearly. A
table grows by doubling up to its limit; while it grows it takes half as much memory again.
"""

from libc.errno cimport ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pybroker.core.base.random cimport getrandom

cdef enum:
    SLOTS_FIRST = 1024
    SLOTS_MIN = 16           # allowed by any limit, so that a round makes progress
    SLOTS_MAX = 1 << 30      # `home` uses 32 bits of the hash
    FILLED_MAX = 3           # quarters of the slots

cdef extern from *:
    """
    static inline uint64_t word_of(uint64_t x) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
      return x;
    #else
      return __builtin_bswap64(x);
    #endif
    }
    static inline uint64_t rotated(uint64_t x, int n) { return x << n | x >> (64 - n); }
    """
    uint64_t word_of(uint64_t x) nogil
    uint64_t rotated(uint64_t x, int n) nogil


cdef inline void mix(uint64_t* v, int rounds) noexcept nogil:
    cdef int _
    for _ in range(rounds):
        v[0] += v[1]
        v[2] += v[3]
        v[1] = rotated(v[1], 13) ^ v[0]
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] = rotated(v[0], 32)
        v[2] += v[1]
        v[0] += v[3]
        v[1] = rotated(v[1], 17) ^ v[2]
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] = rotated(v[2], 32)


cdef inline void absorb(uint64_t* v, uint64_t word) noexcept nogil:
    v[3] ^= word
    mix(v, 2)
    v[0] ^= word


cdef void hash_key(const uint64_t* secret, const uint8_t* p, int64_t n, uint64_t* low, uint64_t* high) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word = 0, last = <uint64_t>n << 56
    v[0] = secret[0] ^ <uint64_t>0x736F6D6570736575
    v[1] = secret[1] ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    v[2] = secret[0] ^ <uint64_t>0x6C7967656E657261
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573
    while n >= 8:
        memcpy(&word, p, 8)
        absorb(v, word_of(word))
        p += 8
        n -= 8
    word = 0
    memcpy(&word, p, <size_t>n)
    absorb(v, last | word_of(word))
    v[2] ^= 0xEE
    mix(v, 4)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    mix(v, 4)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline int64_t home(const offset_map_t* m, uint64_t low) noexcept nogil:
    return <int64_t>(((low >> 32) * <uint64_t>m.capacity) >> 32)


cdef inline slot_t* find(const offset_map_t* m, uint64_t low, uint64_t high) noexcept nogil:
    """Find the slot that holds a hash, or the free slot for it."""
    cdef int64_t i = home(m, low)
    while m.slots[i].next != 0 and (m.slots[i].low != low or m.slots[i].high != high):
        i += 1
        if i == m.capacity:
            i = 0
    return &m.slots[i]


cdef int offset_map_init(offset_map_t* m, int64_t bytes_max) noexcept nogil:
    """Initialize an empty table whose slots take at most bytes_max (or SLOTS_MIN of them)."""
    m.count = 0
    m.capacity_max = min(max(bytes_max // <int64_t>sizeof(slot_t), <int64_t>SLOTS_MIN), <int64_t>SLOTS_MAX)
    m.capacity = min(m.capacity_max, <int64_t>SLOTS_FIRST)
    m.slots = NULL
    if getrandom(m.secret, sizeof(m.secret), 0) != sizeof(m.secret):
        return -errno
    m.slots = <slot_t*>calloc(<size_t>m.capacity, sizeof(slot_t))
    return 0 if m.slots != NULL else -ENOMEM


cdef void offset_map_free(offset_map_t* m) noexcept nogil:
    free(m.slots)
    m.slots = NULL


cdef int grow(offset_map_t* m) noexcept nogil:
    cdef slot_t* old = m.slots
    cdef int64_t i, n = m.capacity
    cdef int64_t capacity = min(n * 2, m.capacity_max)
    if capacity == n:
        return MAP_FULL
    m.slots = <slot_t*>calloc(<size_t>capacity, sizeof(slot_t))
    if m.slots == NULL:
        m.slots = old
        return MAP_FULL  # no memory is treated like the limit
    m.capacity = capacity
    for i in range(n):
        if old[i].next != 0:
            find(m, old[i].low, old[i].high)[0] = old[i]
    free(old)
    return 0


cdef int offset_map_put(offset_map_t* m, const uint8_t* key, int64_t n, int64_t offset) noexcept nogil:
    """Set the offset of a key's last record. MAP_FULL, and nothing is set, if the limit leaves no room."""
    cdef uint64_t low, high
    cdef slot_t* slot
    cdef int status
    hash_key(m.secret, key, n, &low, &high)
    slot = find(m, low, high)
    if slot.next == 0:
        if (m.count + 1) * 4 > m.capacity * FILLED_MAX:
            status = grow(m)
            if status != 0:
                return status
            slot = find(m, low, high)
        slot.low = low
        slot.high = high
        m.count += 1
    slot.next = offset + 1
    return 0


cdef int64_t offset_map_last(const offset_map_t* m, const uint8_t* key, int64_t n) noexcept nogil:
    """The offset of a key's last record; -1 for an unknown key."""
    cdef uint64_t low, high
    hash_key(m.secret, key, n, &low, &high)
    return find(m, low, high).next - 1
