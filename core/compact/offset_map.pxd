# The offset of each key's last record: a hash table of bounded size.
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    MAP_FULL = -100004       # a status: no room for another key

cdef struct slot_t:
    uint64_t low             # 128 bits of the key's hash
    uint64_t high
    int64_t next             # the offset after its last record; 0: a free slot

cdef struct offset_map_t:
    uint64_t secret[2]
    slot_t* slots
    int64_t capacity
    int64_t capacity_max
    int64_t count

cdef int offset_map_init(offset_map_t* m, int64_t bytes_max) noexcept nogil
cdef void offset_map_free(offset_map_t* m) noexcept nogil
cdef int offset_map_put(offset_map_t* m, const uint8_t* key, int64_t n, int64_t offset) noexcept nogil
cdef int64_t offset_map_last(const offset_map_t* m, const uint8_t* key, int64_t n) noexcept nogil
