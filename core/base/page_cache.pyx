"""The ranges of a file that are in the kernel's page cache, and dropping those that are not needed again.

Whether a range is cached comes from cachestat (Linux 6.5); on older kernels one byte of every 32 KiB is read with
RWF_NOWAIT. cachestat also counts pages that are still being read: reading a byte of every 128 KiB finds those. In a
virtual machine the first touch of a page whose memory the host had taken back takes 10 us, so no byte is read where a
thread has just waited for the range.

A thread that reads much of what no other reader needs (a scan, a consumer that catches up) would push out the pages
that all others read: the kernel takes pages that were read twice for important, and each of these is read once to bring
it in, and once to send it. So what was not cached before is dropped behind the reader. It is dropped in pieces of many
pages, as the kernel keeps a large folio that lies only partly in a piece.

The cost depends on how a range is brought in. With fadvise, or reads of a descriptor without read-ahead, the kernel
takes one page of 4 KiB at a time: 0.25 ms of a core for a MiB, and 0.04 ms to drop it. A fault in a map that wants huge
pages has it take folios of 2 MiB, if the file system supports them (ext4 since Linux 6.16, XFS since 5.18): 0.01 ms,
and nearly nothing. The kernel then continues with its own read-ahead, in the thread that first touches a page it
marked, by any kind of read: this must be the thread that brings in, never one that may not wait.
"""

from libc.stdint cimport int64_t, uint64_t, uintptr_t

from pybroker.core.base.files cimport (
    MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, POSIX_FADV_DONTNEED,
    PROT_NONE, PROT_READ, madvise, mmap, munmap, posix_fadvise,
)
from pybroker.core.base.mapping cimport map_let_go, map_t

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifndef MADV_POPULATE_READ
    #define MADV_POPULATE_READ 22  // of Linux 5.14
    #endif
    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 8  // of Linux 4.14; musl has neither this nor preadv2 before 1.2.5
    #endif
    #ifndef __NR_cachestat
    #define __NR_cachestat 451  // the same on every architecture
    #endif
    struct pyb_cachestat { uint64_t cached, dirty, writeback, evicted, recently_evicted; };
    // The number of pages of a range that are in the cache; -errno.
    static int64_t pyb_cached(int fd, uint64_t position, uint64_t n) {
      uint64_t range[2] = {position, n};
      struct pyb_cachestat found = {0, 0, 0, 0, 0};
      return syscall(__NR_cachestat, fd, range, &found, 0) ? -errno : (int64_t)found.cached;
    }
    // 1: the byte can be read without waiting, 0: it cannot, -1: the file system does not report it.
    static int pyb_at_hand(int fd, int64_t position) {
      char byte;
      struct iovec v = {&byte, 1};
      if (syscall(__NR_preadv2, fd, &v, 1, (long)position, 0L, RWF_NOWAIT) >= 0) return 1;
      return errno == EAGAIN ? 0 : -1;
    }
    """
    int64_t pyb_cached(int fd, uint64_t position, uint64_t n) nogil
    int pyb_at_hand(int fd, int64_t position) nogil
    int MADV_POPULATE_READ

cdef enum:
    PAGE = 4096
    LOOK = 128 << 10             # between bytes that are tried, as cachestat counts pages that are still being read
    SAMPLE = 32 << 10            # the same where the kernel has no cachestat
    FORGET_BYTES = 16 << 20
    FOLIO_BYTES = 2 << 20
    GAP_BYTES = 1 << 20          # allowed between what was brought in and what comes next
    UNASKED_BYTES = 16 << 20     # that the kernel may read ahead beyond the range asked for
    STRAY = 16  # one page of so many may be cached although it was not read: one is mapped, or was left
    ALIGNED = 64 << 10           # no machine has larger pages


cdef int64_t missing_pages(int fd, int64_t position, int64_t n, int64_t* pages) noexcept nogil:
    """The number of pages of a range that are neither cached nor being read; -1 if the kernel cannot report it."""
    cdef int64_t first = position // PAGE, cached
    pages[0] = (position + n + PAGE - 1) // PAGE - first
    cached = pyb_cached(fd, first * PAGE, pages[0] * PAGE)
    return -1 if cached < 0 else pages[0] - cached


cdef bint is_cached(int fd, int64_t position, int64_t n, bint was_read) noexcept nogil:
    cdef int64_t end = position + n, pages = 0, missing, step
    if not was_read and pyb_at_hand(fd, end - 1) == 0:
        return False
    missing = missing_pages(fd, position, n, &pages)
    if missing > 0:
        return False
    if missing == 0 and was_read:
        return True
    step = LOOK if missing == 0 else SAMPLE
    while position < end:
        if pyb_at_hand(fd, position) == 0:
            return False
        position += step
    return True


cdef bint was_cached(int fd, int64_t position, int64_t n) noexcept nogil:
    """True if most of a range is cached, or the kernel cannot report it."""
    cdef int64_t pages = 0
    return 2 * missing_pages(fd, position, n, &pages) <= pages


cdef bint bring_in(int fd, int64_t position, int64_t n) noexcept nogil:
    """Have the kernel read a range, and maybe more after it, and wait for the range. False on failure: the kernel is
    too old, there are too many maps, the file ends before, or the disk cannot read."""
    cdef int64_t from_ = position // FOLIO_BYTES * FOLIO_BYTES, size = position + n - from_
    cdef int64_t first = position // ALIGNED * ALIGNED - from_
    cdef size_t room = <size_t>(size + FOLIO_BYTES)
    cdef void* area = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    cdef char* at = <char*>((<uintptr_t>area + FOLIO_BYTES - 1) // FOLIO_BYTES * FOLIO_BYTES)
    cdef bint done           # with this alignment one entry of the page table maps a folio
    if area == MAP_FAILED:
        return False
    done = (
        mmap(at, <size_t>size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, from_) != MAP_FAILED
        and madvise(at, <size_t>size, MADV_HUGEPAGE) == 0
        and madvise(at + first, <size_t>(size - first), MADV_POPULATE_READ) == 0
    )
    munmap(area, room)
    return done


cdef int64_t absent(int fd, int64_t position) noexcept nogil:
    """The number of bytes from `position` on that are not cached, as far as the kernel may read ahead."""
    cdef int64_t n = 0, pages = 0
    while n < UNASKED_BYTES and missing_pages(fd, position + n, FOLIO_BYTES, &pages) >= pages - pages // STRAY:
        n += FOLIO_BYTES
    return n


cdef bint passed_bring(passed_t* p, int fd, int64_t position, int64_t end) noexcept nogil:
    """Bring in a range, and note what this added to the cache; see bring_in."""
    cdef bint goes_on = p.start <= position <= p.end
    cdef int64_t start = p.end if goes_on else position, edge = max(start, end), pages = 0
    cdef bint cold = start < end and not was_cached(fd, start, end - start)
    cdef int64_t beyond = absent(fd, edge) if cold or goes_on else 0
    cdef bint done = bring_in(fd, position, end - position)
    if cold:
        passed_add(p, start, end - start)
    if beyond > 0:
        beyond -= missing_pages(fd, edge, beyond, &pages) * PAGE
        passed_add(p, edge, max(<int64_t>0, beyond))
    return done


cdef void passed_add(passed_t* p, int64_t position, int64_t n) noexcept nogil:
    if position < p.start or position > p.end + GAP_BYTES:
        p.start = position
        p.end = position
    p.end = max(p.end, position + n)


cdef void forget(int fd, int64_t position, int64_t n) noexcept nogil:
    """Drop it in pieces, as the kernel does not yield the processor within one. Each piece includes the folio that the
    end of the piece before may have cut."""
    cdef int64_t end = position + n, from_
    while position < end:
        from_ = max(<int64_t>0, position - FOLIO_BYTES)
        position = min(end, position + FOLIO_BYTES)
        posix_fadvise(fd, from_, position - from_, POSIX_FADV_DONTNEED)


cdef void passed_forget(passed_t* p, int fd, int64_t position, const map_t* m) noexcept nogil:
    cdef int64_t end = min(position, p.end)
    if end > p.start and end - p.start >= FORGET_BYTES:
        if m != NULL:
            map_let_go(m, p.start - FOLIO_BYTES, end)
        forget(fd, p.start, end - p.start)
        p.start = end


cdef void passed_end(passed_t* p, int fd) noexcept nogil:
    if p.end > p.start:
        forget(fd, p.start, p.end - p.start)
    passed_init(p)
