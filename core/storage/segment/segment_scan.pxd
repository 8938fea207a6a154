# Checking the batches of a segment's file: after a crash, and by scrubbing.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.mapping cimport map_t
from pybroker.core.base.page_cache cimport passed_t
from pybroker.core.base.vfs cimport vfs_t
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.segment.spots cimport spot_t

cdef enum:
    SCAN_BYTES = 256 << 10       # fits the L2 cache, where the CRC then finds the bytes that pread wrote
    SCAN_MAP_BYTES = 2 << 20     # small enough that the kernel's page structures are still cached at the unmap
    SCAN_ASK_BYTES = 64 << 20

cdef struct scan_t:
    vfs_t* fs
    uint8_t* buffer          # of a gentle scan, SCAN_BYTES
    const uint8_t* data      # the present piece of the file: in the buffer or a map
    map_t map
    int fd                   # of the file that is scanned
    int64_t size             # its bytes
    int64_t base_offset      # of the segment
    int64_t next_base        # of the next segment, which no batch may reach; INT64_MAX: no limit
    int32_t next_epoch       # of that segment's first batch: next_base does not limit batches of a later epoch
    int64_t buffered         # position of `data` in the file
    size_t length
    bint brought             # the piece was not in the page cache before
    int64_t asked_from       # the range that was last checked for being in the cache
    int64_t asked_to
    bint asked               # the kernel was asked to read that range
    passed_t passed
    int64_t expected         # the next offset
    int32_t epoch            # of the batch before
    int32_t epoch_max        # no batch can have a larger epoch; -1 unknown
    int64_t check_from       # batches below this offset are trusted without a check of the CRC
    bint strict              # offsets have no gaps: the log was never compacted
    bint gentle              # the file is copied, piece by piece
    int64_t scanned_bytes    # bytes whose CRC was computed

cdef int scan_init(scan_t* c, vfs_t* fs) noexcept nogil
cdef void scan_free(scan_t* c) noexcept nogil
# End the scan of a file, which is still open: pages that the scan brought into the page cache are dropped.
cdef void scan_leave(scan_t* c) noexcept nogil
cdef void scan_file(scan_t* c, int fd, int64_t size, int64_t base_offset) noexcept nogil
cdef int scan_batch(scan_t* c, int64_t position, batch_t* b) noexcept nogil
cdef int scan_body(scan_t* c, int64_t position, const batch_t* b, uint8_t* body, size_t* n) noexcept nogil
cdef void scan_accept(scan_t* c, const batch_t* b) noexcept nogil
cdef int scan_behind(scan_t* c, int64_t position, spot_t* out) noexcept nogil
cdef int scan_tail(scan_t* c, int64_t position, bint* torn) noexcept nogil
