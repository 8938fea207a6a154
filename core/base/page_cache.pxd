# Whether the kernel has a range of a file in its page cache.
from libc.stdint cimport int64_t

cdef bint is_cached(int fd, int64_t position, int64_t n) noexcept nogil
