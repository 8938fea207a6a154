"""What the kernel has of a file in its page cache, and what it need not keep.

Whether it has a range says cachestat of Linux 6.5; before it, one byte of every 32 KiB is read with RWF_NOWAIT. Pages
that are being read count, too: a byte of every 128 KiB says whether they are. In a virtual machine the first touch of a
page whose memory the host has taken back before takes 10 us: where somebody waited for the range no byte is read.

Who reads much of what nobody else reads (a scan, a consumer that catches up) would push out of the cache what all
others read: the kernel takes pages that were read twice for important, and each of these is read once to bring it in,
and once to send it. So what was not in the cache before is forgotten behind the reader, in pieces of many pages: of a
large folio that lies in a piece only in part the kernel lets go nothing.

How it is brought in decides what that costs. Asked by fadvise, or by reads of a descriptor without read-ahead, the
kernel takes a page of 4 KiB at a time: 0.25 ms of a core for a MiB, and 0.04 ms to let go of it. A fault in a map that
wants huge pages has it take folios of 2 MiB, where the file system can have them (ext4 since Linux 6.16, XFS since
5.18): 0.01 ms, and nearly nothing. It goes on then by its own read-ahead, in the thread that first touches what it
marked, by whatever read: that is to be the thread that brings in, and nobody who may not wait.
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
    int MADV_POPULATE_READ

cdef enum:
    PAGE = 4096
    LOOK = 128 << 10             # between bytes that are tried: cachestat counts pages that are being read
    SAMPLE = 32 << 10            # where the kernel has no cachestat
    FORGET_BYTES = 16 << 20
    FOLIO_BYTES = 2 << 20
    GAP_BYTES = 1 << 20          # that may lie between what was brought and what comes next
    UNASKED_BYTES = 16 << 20     # beyond what it was asked for, that the kernel may read ahead
    STRAY = 16                   # one page of so many may be there, and nobody reads them: one is mapped, or was left
    ALIGNED = 64 << 10           # a page is not larger anywhere


cdef int64_t missing_pages(int fd, int64_t position, int64_t n, int64_t* pages) noexcept nogil:
    """How many pages of a range are not in the cache, those that are read at this moment aside; -1: nobody knows."""
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
    """Is most of a range in the cache, or can that not be known?"""
    cdef int64_t pages = 0
    return 2 * missing_pages(fd, position, n, &pages) <= pages


cdef bint bring_in(int fd, int64_t position, int64_t n) noexcept nogil:
    """Have the kernel read a range, and more behind it if it likes, and wait for the range. False if it could not: it
    is too old, there are too many maps, the file ends before or the disk cannot read it."""
    cdef int64_t from_ = position // FOLIO_BYTES * FOLIO_BYTES, size = position + n - from_
    cdef int64_t first = position // ALIGNED * ALIGNED - from_
    cdef size_t room = <size_t>(size + FOLIO_BYTES)
    cdef void* area = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    cdef char* at = <char*>((<uintptr_t>area + FOLIO_BYTES - 1) // FOLIO_BYTES * FOLIO_BYTES)
    cdef bint done           # aligned so, one entry of the page table maps a folio
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
    """How many bytes from here on are not in the cache, as far as the kernel may read ahead."""
    cdef int64_t n = 0, pages = 0
    while n < UNASKED_BYTES and missing_pages(fd, position + n, FOLIO_BYTES, &pages) >= pages - pages // STRAY:
        n += FOLIO_BYTES
    return n


cdef bint passed_bring(passed_t* p, int fd, int64_t position, int64_t end) noexcept nogil:
    """Bring in a range, and note what came into the cache by that; see bring_in."""
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
    """In pieces, each with the folio that the one before may have cut in two: while the kernel lets go of one, nobody
    else has the processor."""
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
