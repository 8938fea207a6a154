# What the kernel has of a file in its page cache, and what it need not keep.
from libc.stdint cimport INT64_MAX, int64_t

from pybroker.core.base.mapping cimport map_t

# Is all of a range in the cache, or can that not be known? `was_read`: somebody waited for all of it, a moment ago.
cdef bint is_cached(int fd, int64_t position, int64_t n, bint was_read) noexcept nogil

cdef bint was_cached(int fd, int64_t position, int64_t n) noexcept nogil   # the most of it

# A range that nobody reads need not stay in the cache. Nothing of it may be mapped, or not on disk yet. A hint.
cdef void forget(int fd, int64_t position, int64_t n) noexcept nogil

cdef struct passed_t:        # a range that was read once, and was not in the cache before
    int64_t start            # INT64_MAX: there is none
    int64_t end

cdef inline void passed_init(passed_t* p) noexcept nogil:
    p.start = INT64_MAX
    p.end = 0

# These bytes were brought into the cache just now, behind what was brought before, or elsewhere.
cdef void passed_add(passed_t* p, int64_t position, int64_t n) noexcept nogil

# Have a range in the cache, whose pages large folios hold: it waits for the disk. False if that was no good.
cdef bint passed_bring(passed_t* p, int fd, int64_t position, int64_t end) noexcept nogil

# Forget what lies before `position`, once that is worth it. `m`: a map of the file from its start, whose pages the
# kernel would keep; or NULL.
cdef void passed_forget(passed_t* p, int fd, int64_t position, const map_t* m) noexcept nogil

# Forget the rest.
cdef void passed_end(passed_t* p, int fd) noexcept nogil
