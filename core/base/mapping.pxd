# Ranges of files mapped for reading; a lost page does not end the process, see mapping.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef struct map_t:
    const uint8_t* data      # of the first byte of the range
    int64_t size
    void* base               # of the first page
    int64_t mapped           # bytes, in whole pages
    int32_t slot
    int32_t lost             # a page could not be read; it reads as zeros
    int64_t end              # of the range in the file

cdef inline void map_init(map_t* m) noexcept nogil:
    """Initialize a map that is not open."""
    m.base = NULL
    m.lost = 0

# Map `size` bytes (1 or more) of a file, from any position. 0 or -errno; -ENOMEM for too many maps.
cdef int map_open(map_t* m, int fd, int64_t position, int64_t size) noexcept nogil
cdef void map_close(map_t* m) noexcept nogil

# The same with the map on the heap; NULL if it could not be made. map_free takes NULL too.
cdef map_t* map_new(int fd, int64_t position, int64_t size) noexcept nogil
cdef void map_free(map_t* m) noexcept nogil

# Advise the kernel that the map is read from beginning to end, or at random.
cdef void map_sequential(map_t* m) noexcept nogil
cdef void map_random(map_t* m) noexcept nogil

# Unmap its pages from `start` to `end`, counted from its first byte; the next read maps them again.
cdef void map_let_go(const map_t* m, int64_t start, int64_t end) noexcept nogil

# True if there are few maps, so that one may be used that only saves time.
cdef bint map_is_cheap() noexcept nogil

# Install the SIGBUS handler again: another one may have been installed since a map was opened.
cdef void map_guard() noexcept nogil

cdef class FileMap:
    cdef map_t m
    cdef int fd
    cdef int64_t changed_ns  # when the file was last changed before it was mapped

    # True if bytes that were read may differ from the file's.
    cdef bint is_stale(self) noexcept nogil
