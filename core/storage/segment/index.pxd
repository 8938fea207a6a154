# The two sparse indexes of a segment: offsets to positions, timestamps to offsets.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.mapping cimport map_t
from pybroker.core.base.vfs cimport vfs_t

cdef enum:
    OFFSET_ENTRY = 8     # relative offset i32, position i32
    TIME_ENTRY = 12      # timestamp i64, relative offset i32
    INDEX_CHUNKS = 24    # chunk k holds 64 << k entries: chunks never move, so a reader needs no lock

cdef struct entry_t:
    int64_t key          # relative offset, or timestamp
    int64_t value        # position, or relative offset

cdef struct index_t:
    int32_t width        # OFFSET_ENTRY or TIME_ENTRY
    int32_t fd           # a sealed segment's index that is searched by pread; -1: it is mapped, or on the heap
    map_t* map           # a sealed segment's index that is mapped; else NULL
    int64_t count        # entries that a reader may see
    int64_t written      # heap: entries that the file has too
    entry_t* chunks[<int>INDEX_CHUNKS]

cdef void index_init(index_t* ix, int width) noexcept nogil
cdef void index_free(index_t* ix) noexcept nogil
cdef int index_add(index_t* ix, int64_t key, int64_t value) noexcept nogil
cdef int index_get(const index_t* ix, int64_t i, entry_t* out) noexcept nogil
cdef int64_t index_floor(const index_t* ix, int64_t key, entry_t* out) noexcept nogil
cdef int64_t index_floor_value(const index_t* ix, int64_t value, entry_t* out) noexcept nogil
cdef int index_open(index_t* ix, vfs_t* fs, const char* path, int width) noexcept nogil
cdef int index_read(index_t* ix, vfs_t* fs, const char* path, int width, int64_t value_max) noexcept nogil
cdef int index_load(index_t* ix, vfs_t* fs, const char* path, int64_t value_max) noexcept nogil
cdef int index_write(index_t* ix, vfs_t* fs, const char* path, bint durable) noexcept nogil
cdef int index_replace(const index_t* ix, vfs_t* fs, const char* path) noexcept nogil
cdef void index_cut(index_t* ix, int64_t value_below, int64_t key_below) noexcept nogil
