# The transaction index of a segment: the aborted transactions whose markers are in it.
from libc.stdint cimport int64_t

from pybroker.core.base.vfs cimport vfs_t

cdef enum:
    ABORTED_ENTRY = 34       # version i16, then the four fields of aborted_t
    ABORTED_CHUNKS = 24      # chunk k holds 64 << k entries: chunks never move, so a reader needs no lock

cdef struct aborted_t:
    int64_t producer_id
    int64_t first            # the transaction's first offset
    int64_t last             # of its marker
    int64_t last_stable      # the first offset of the oldest other transaction that was open then, or after the marker

cdef struct aborts_t:
    int64_t count            # entries that a reader may see
    int64_t written          # entries that the file has too
    aborted_t* chunks[<int>ABORTED_CHUNKS]
    int64_t* lowest[<int>ABORTED_CHUNKS]  # of each 64 entries of a chunk: the lowest first offset, or a lower one

cdef struct abort_list_t:    # of the answers to a reader; empty when zeroed, and reused
    aborted_t* items
    int64_t count
    int64_t capacity

cdef aborts_t* aborts_new() noexcept nogil
cdef void aborts_free(void* aborts) noexcept nogil
cdef int aborts_reserve(aborts_t* x, int64_t n) noexcept nogil
cdef int aborts_add(aborts_t* x, const aborted_t* entry) noexcept nogil
cdef int aborts_add_all(aborts_t* x, const aborts_t* other) noexcept nogil
cdef void aborts_cut(aborts_t* x, int64_t offset) noexcept nogil
cdef int aborts_load(
    vfs_t* fs, const char* path, int64_t base_offset, int64_t end_offset, aborts_t** out) noexcept nogil
cdef int aborts_write(aborts_t* x, vfs_t* fs, const char* path, bint durable) noexcept nogil
cdef int aborts_replace(const aborts_t* x, vfs_t* fs, const char* path) noexcept nogil
cdef int aborts_collect(
    const aborts_t* x, int64_t offset, int64_t end, abort_list_t* into, bint* complete) noexcept nogil
