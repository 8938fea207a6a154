# Ranges of files mapped for reading, which lose pages without harm: see mapping.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef struct map_t:
    const uint8_t* data      # of the first byte that was asked for
    int64_t size
    void* base               # of the first page
    int64_t mapped           # bytes, in whole pages
    int32_t slot
    int32_t lost             # a page could not be read: what was read of it are zeros
    int64_t end              # in the file

cdef inline void map_init(map_t* m) noexcept nogil:
    """Of none."""
    m.base = NULL
    m.lost = 0

# Map `size` bytes (1 or more) of a file from any position on. 0 or -errno; -ENOMEM for too many maps.
cdef int map_open(map_t* m, int fd, int64_t position, int64_t size) noexcept nogil
cdef void map_close(map_t* m) noexcept nogil

# The same on the heap; NULL if there is none to be had, or nothing to be freed.
cdef map_t* map_new(int fd, int64_t position, int64_t size) noexcept nogil
cdef void map_free(map_t* m) noexcept nogil

# It is read from its beginning to its end, or here and there.
cdef void map_sequential(map_t* m) noexcept nogil
cdef void map_random(map_t* m) noexcept nogil

# Have none of its pages from `start` to `end`, counted from its first byte, until they are read again.
cdef void map_let_go(const map_t* m, int64_t start, int64_t end) noexcept nogil

# Are there so few maps that one may be had that only saves time?
cdef bint map_is_cheap() noexcept nogil

# See that faults in maps are ours to handle: another handler may have come since one was opened.
cdef void map_guard() noexcept nogil

cdef class FileMap:
    cdef map_t m
    cdef int fd
    cdef int64_t changed_ns  # when the file was last changed before it was mapped

    # Whether what was read may not be what was in the file.
    cdef bint is_stale(self) noexcept nogil
