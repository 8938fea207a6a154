# The ranges of a file that are in the kernel's page cache, and dropping those that are not needed again.
from libc.stdint cimport INT64_MAX, int64_t

from pybroker.core.base.mapping cimport map_t

# True if all of a range is cached, or the kernel cannot report it. `was_read`: a thread has just waited for all of it.
cdef bint is_cached(int fd, int64_t position, int64_t n, bint was_read) noexcept nogil

cdef bint was_cached(int fd, int64_t position, int64_t n) noexcept nogil   # most of the range

# Drop a range from the cache. It must not be mapped, and must be on disk already. A hint.
cdef void forget(int fd, int64_t position, int64_t n) noexcept nogil

cdef struct passed_t:        # a range that was read once, and was not cached before
    int64_t start            # INT64_MAX: none
    int64_t end

cdef inline void passed_init(passed_t* p) noexcept nogil:
    p.start = INT64_MAX
    p.end = 0

# Note bytes that were just brought into the cache, after those noted before or elsewhere.
cdef void passed_add(passed_t* p, int64_t position, int64_t n) noexcept nogil

# Bring a range into the cache, in large folios; it waits for the disk. False on failure.
cdef bint passed_bring(passed_t* p, int fd, int64_t position, int64_t end) noexcept nogil

# Drop what lies before `position`, once it is large enough. `m`: a map of the file from its start, whose pages the
# kernel would keep; or NULL.
cdef void passed_forget(passed_t* p, int fd, int64_t position, const map_t* m) noexcept nogil

# Drop the rest.
cdef void passed_end(passed_t* p, int fd) noexcept nogil
