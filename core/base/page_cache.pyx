"""What the kernel has of a file in its page cache, and what it need not keep.

Whether it has a range says cachestat of Linux 6.5; before it, one byte of every 32 KiB is read with RWF_NOWAIT.

Who reads much of what nobody else reads (a scan, a consumer that catches up) would push out of the cache what all
others read: the kernel takes pages that were read twice for important, and each of these is read once to bring it in,
and once to send it. So what was not in the cache before is forgotten behind the reader, in pieces of many pages: of a
large folio that lies in a piece only in part the kernel lets go nothing.
"""

from libc.stdint cimport int64_t, uint64_t

from pybroker.core.base.files cimport POSIX_FADV_DONTNEED, posix_fadvise

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifndef __NR_cachestat
    #define __NR_cachestat 451  // the same on every architecture
    #endif
    struct pyb_cachestat { uint64_t cached, dirty, writeback, evicted, recently_evicted; };
    // How many pages of a range are in the cache; -errno.
    static int64_t pyb_cached(int fd, uint64_t position, uint64_t n) {
      uint64_t range[2] = {position, n};
      struct pyb_cachestat found = {0, 0, 0, 0, 0};
      return syscall(__NR_cachestat, fd, range, &found, 0) ? -errno : (int64_t)found.cached;
    }
    // 1: the byte can be had without waiting, 0: it cannot, -1: the file system does not say.
    static int pyb_at_hand(int fd, int64_t position) {
      char byte;
      struct iovec v = {&byte, 1};
      if (preadv2(fd, &v, 1, position, RWF_NOWAIT) >= 0) return 1;
      return errno == EAGAIN ? 0 : -1;
    }
    """
    int64_t pyb_cached(int fd, uint64_t position, uint64_t n) nogil
    int pyb_at_hand(int fd, int64_t position) nogil

cdef enum:
    PAGE = 4096
    LOOK = 128 << 10             # between bytes that are tried: cachestat counts pages that are being read
    SAMPLE = 32 << 10            # where the kernel has no cachestat
    FORGET_BYTES = 16 << 20
    FOLIO_BYTES = 2 << 20
    GAP_BYTES = 1 << 20          # that may lie between what was brought and what comes next


cdef int64_t missing_pages(int fd, int64_t position, int64_t n, int64_t* pages) noexcept nogil:
    """How many pages of a range are not in the cache, those that are read at this moment aside; -1: nobody knows."""
    cdef int64_t first = position // PAGE, cached
    pages[0] = (position + n + PAGE - 1) // PAGE - first
    cached = pyb_cached(fd, first * PAGE, pages[0] * PAGE)
    return -1 if cached < 0 else pages[0] - cached


cdef bint is_cached(int fd, int64_t position, int64_t n) noexcept nogil:
    """Is all of a range in the cache, or can that not be known?"""
    cdef int64_t end = position + n, pages = 0, missing, step
    if pyb_at_hand(fd, end - 1) == 0:
        return False
    missing = missing_pages(fd, position, n, &pages)
    if missing > 0:
        return False
    step = LOOK if missing == 0 else SAMPLE
    while position < end:
        if pyb_at_hand(fd, position) == 0:
            return False
        position += step
    return True


cdef bint was_cached(int fd, int64_t position, int64_t n) noexcept nogil:
    """Is most of a range in the cache, or can that not be known?"""
    cdef int64_t pages = 0
    return 2 * missing_pages(fd, position, n, &pages) <= pages


cdef void passed_add(passed_t* p, int64_t position, int64_t n) noexcept nogil:
    if position < p.start or position > p.end + GAP_BYTES:
        p.start = position
        p.end = position
    p.end = max(p.end, position + n)


cdef void forget(int fd, int64_t position, int64_t n) noexcept nogil:
    """In pieces, each with the folio that the one before may have cut in two: while the kernel lets go of one, nobody
    else has the processor."""
    cdef int64_t end = position + n, from_
    while position < end:
        from_ = max(<int64_t>0, position - FOLIO_BYTES)
        position = min(end, position + FOLIO_BYTES)
        posix_fadvise(fd, from_, position - from_, POSIX_FADV_DONTNEED)


cdef void passed_forget(passed_t* p, int fd, int64_t position) noexcept nogil:
    cdef int64_t end = min(position, p.end)
    if end > p.start and end - p.start >= FORGET_BYTES:
        forget(fd, p.start, end - p.start)
        p.start = end


cdef void passed_end(passed_t* p, int fd) noexcept nogil:
    if p.end > p.start:
        forget(fd, p.start, p.end - p.start)
    passed_init(p)
