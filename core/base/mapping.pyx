"""Ranges of files, mapped for reading.

A map saves the copy of a read, but its pages may go while somebody reads them: the file is cut, or the disk cannot read
a page. That would end the process (SIGBUS); here the page reads as zeros from then on, and the map is `lost`
(mapping_impl.h). Where a file that was cut ends within a page the rest of that page has zeros, too, and does not fault.
So who reads checks afterwards, against the CRC where there is one; and nothing that he reads may do harm before.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport EINVAL, errno
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.files cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap
from pybroker.core.base.status cimport raise_status
from pybroker.core.base.vfs cimport vfs_close, vfs_size

cdef extern from "mapping_impl.h" nogil:
    size_t page_bytes
    int guard_add(void* base, size_t n, int32_t* lost)
    void guard_remove(int slot)

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* at, size_t n, int advice)
    int MADV_SEQUENTIAL

cdef extern from "<fcntl.h>" nogil:
    int fcntl(int fd, int command, ...)
    int F_DUPFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    int _SC_PAGESIZE

page_bytes = <size_t>sysconf(_SC_PAGESIZE)


cdef int map_open(map_t* m, int fd, int64_t position, int64_t size) noexcept nogil:
    cdef int64_t skipped = position % <int64_t>page_bytes
    m.base, m.lost, m.slot, m.fd, m.end = NULL, 0, -1, -1, position + size
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
    """Nothing, if it is not open."""
    if m.base == NULL:
        return
    guard_remove(m.slot)
    munmap(m.base, <size_t>m.mapped)
    m.base = NULL


cdef void map_sequential(map_t* m) noexcept nogil:
    madvise(m.base, <size_t>m.mapped, MADV_SEQUENTIAL)


cdef bint map_lost(const map_t* m) noexcept nogil:
    return load_i32(&m.lost) or (m.fd >= 0 and vfs_size(m.fd) < m.end)


cdef class FileMap:
    """`size` bytes of an open file from `position` on, behind the buffer protocol, for one pass over them.

    The descriptor may be closed afterwards. Raises OSError (ENOMEM: there are too many maps)."""

    def __cinit__(self, int fd, int64_t position, int64_t size):
        raise_status(map_open(&self.m, fd, position, size), "map a file")
        map_sequential(&self.m)
        self.m.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)
        if self.m.fd < 0:
            raise_status(-errno, "map a file")

    def __dealloc__(self):
        if self.m.base != NULL and self.m.fd >= 0:
            vfs_close(self.m.fd)
        map_close(&self.m)

    def __len__(self) -> int:
        return self.m.size

    @property
    def lost(self) -> bool:
        """Whether bytes that were read may be zeros that the file did not have."""
        return map_lost(&self.m)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.m.data, self.m.size, True, flags)
