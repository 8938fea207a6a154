"""Ranges of files, mapped for reading.

A map saves the copy of a read, but its pages may go while they are read: the file is truncated, or the disk cannot read
a page. That would end the process (SIGBUS); here the page reads as zeros from then on, and the map is `lost`
(mapping_impl.h). If a file is cut within a page, the rest of that page reads as zeros without a fault; and writes of
another process show at once. So a reader checks afterwards that the file has not changed, and does nothing
irreversible with the bytes before. The kernel dates file changes by a clock with ticks of some milliseconds: a file
changed within the last tick may change again without a new date, and is not mapped.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport EBUSY, EINVAL, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.files cimport (
    MADV_DONTNEED, MADV_RANDOM, MADV_SEQUENTIAL, MAP_FAILED, MAP_SHARED, PROT_READ, madvise, mmap, munmap,
)
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport vfs_close

cdef extern from "mapping_impl.h" nogil:
    size_t page_bytes
    int guard_add(void* base, size_t n, int32_t* lost)
    void guard_remove(int slot)
    int guard()
    int guard_count()
    int GUARDED_MAX
    int file_state(int fd, int64_t* size, int64_t* changed_ns)
    int64_t now_ns()

cdef extern from "<fcntl.h>" nogil:
    int fcntl(int fd, int command, ...)
    int F_DUPFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    int _SC_PAGESIZE

cdef enum:
    SECOND_NS = 1_000_000_000
    TICK_NS = 10_000_000         # the longest tick of the kernel's clock

page_bytes = <size_t>sysconf(_SC_PAGESIZE)


cdef int map_open(map_t* m, int fd, int64_t position, int64_t size) noexcept nogil:
    cdef int64_t skipped = position % <int64_t>page_bytes
    m.base, m.lost, m.slot, m.end = NULL, 0, -1, position + size
    if position < 0 or size < 1:
        return -EINVAL
    m.mapped = (skipped + size + <int64_t>page_bytes - 1) // <int64_t>page_bytes * <int64_t>page_bytes
    m.base = mmap(NULL, <size_t>m.mapped, PROT_READ, MAP_SHARED, fd, position - skipped)
    if m.base == MAP_FAILED:
        m.base = NULL
        return -errno
    m.data = <const uint8_t*>m.base + skipped
    m.size = size
    m.slot = guard_add(m.base, <size_t>m.mapped, &m.lost)
    if m.slot < 0:
        munmap(m.base, <size_t>m.mapped)
        m.base = NULL
        return m.slot
    return 0


cdef void map_close(map_t* m) noexcept nogil:
    """Unmap; nothing happens if it is not open."""
    if m.base == NULL:
        return
    guard_remove(m.slot)
    munmap(m.base, <size_t>m.mapped)
    m.base = NULL


cdef map_t* map_new(int fd, int64_t position, int64_t size) noexcept nogil:
    cdef map_t* m = <map_t*>malloc(sizeof(map_t))
    if m != NULL and map_open(m, fd, position, size) != 0:
        free(m)
        return NULL
    return m


cdef void map_free(map_t* m) noexcept nogil:
    if m != NULL:
        map_close(m)
        free(m)


cdef void map_sequential(map_t* m) noexcept nogil:
    madvise(m.base, <size_t>m.mapped, MADV_SEQUENTIAL)


cdef void map_random(map_t* m) noexcept nogil:
    madvise(m.base, <size_t>m.mapped, MADV_RANDOM)


cdef void map_let_go(const map_t* m, int64_t start, int64_t end) noexcept nogil:
    start = max(<int64_t>0, start) // <int64_t>page_bytes * <int64_t>page_bytes
    end = min(end, m.mapped) // <int64_t>page_bytes * <int64_t>page_bytes
    if start < end:
        madvise(<char*>m.base + start, <size_t>(end - start), MADV_DONTNEED)


cdef bint map_is_cheap() noexcept nogil:
    return guard_count() < GUARDED_MAX // 2


cdef void map_guard() noexcept nogil:
    guard()


cdef bint is_settled(int64_t changed_ns) noexcept nogil:
    """True if every later change gets a later date. Some file systems have dates of whole seconds."""
    return changed_ns + (TICK_NS if changed_ns % SECOND_NS else 2 * <int64_t>SECOND_NS) < now_ns()


cdef class FileMap:
    """`size` bytes of an open file from `position` on, behind the buffer protocol, for one pass over them.

    The descriptor may be closed afterwards. Raises OSError (EBUSY: the file was changed a moment ago; ENOMEM: too many
    maps)."""

    def __cinit__(self, int fd, int64_t position, int64_t size):
        cdef int64_t file_size
        self.fd = -1
        raise_status(file_state(fd, &file_size, &self.changed_ns), "map a file")
        if not is_settled(self.changed_ns):
            raise_status(-EBUSY, "map a file")
        raise_status(map_open(&self.m, fd, position, size), "map a file")
        map_sequential(&self.m)
        self.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)
        if self.fd < 0:
            raise_status(-errno, "map a file")

    def __dealloc__(self):
        vfs_close(self.fd)
        map_close(&self.m)

    cdef bint is_stale(self) noexcept nogil:
        cdef int64_t size, changed_ns
        return (
            load_i32(&self.m.lost) or file_state(self.fd, &size, &changed_ns) != 0
            or changed_ns != self.changed_ns or size < self.m.end
        )

    def __len__(self) -> int:
        return self.m.size

    @property
    def stale(self) -> bool:
        """True if bytes that were read may differ from the file's."""
        return self.is_stale()

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.m.data, self.m.size, True, flags)
