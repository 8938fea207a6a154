"""Whether the kernel has a range of a file in its page cache: cachestat of Linux 6.5; before it, one byte of every 32
KiB is read with RWF_NOWAIT."""

from libc.stdint cimport int64_t, uint64_t

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
    SAMPLE = 32 << 10            # where the kernel has no cachestat


cdef bint is_cached(int fd, int64_t position, int64_t n) noexcept nogil:
    """Is all of a range in the cache, or can that not be known?"""
    cdef int64_t first = position // PAGE, end = (position + n + PAGE - 1) // PAGE, cached
    if pyb_at_hand(fd, position + n - 1) == 0 or pyb_at_hand(fd, position) == 0:
        return False
    cached = pyb_cached(fd, first * PAGE, (end - first) * PAGE)
    if cached >= 0:
        return cached >= end - first
    while position < end * PAGE - SAMPLE:
        position += SAMPLE
        if pyb_at_hand(fd, position) == 0:
            return False
    return True
