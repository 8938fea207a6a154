# Checking the batches of a segment's file: after a crash, and from time to time.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.mapping cimport map_t
from pybroker.core.base.page_cache cimport passed_t
from pybroker.core.base.vfs cimport vfs_t
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.spots cimport spot_t

cdef enum:
    SCAN_BYTES = 256 << 10       # in the second-level cache, so that the CRC reads what pread just wrote
    SCAN_MAP_BYTES = 2 << 20     # what the kernel knows of their pages is still in a cache when they are unmapped
    SCAN_ASK_BYTES = 64 << 20

cdef struct scan_t:
    vfs_t* fs
    uint8_t* buffer          # of a gentle scan, SCAN_BYTES
    const uint8_t* data      # what is at hand of the file: the buffer, or a map
    map_t map
    int fd                   # of the file that is scanned
    int64_t size             # its bytes
    int64_t base_offset      # of the segment
    int64_t next_base        # of the next segment, to which no batch leaps; INT64_MAX: not held against it
    int32_t next_epoch       # of that segment's first batch: a batch of a later epoch is not held against it
    int64_t buffered         # position of data in the file
    size_t length
    bint brought             # it was not in the page cache before
    int64_t asked_from       # of a range
    int64_t asked_to
    bint asked               # the kernel had to be asked for
    passed_t passed
    int64_t expected         # the offset that comes next
    int32_t epoch            # of the batch before
    int32_t epoch_max        # no batch can carry a larger one; -1 unknown
    int64_t check_from       # batches below this offset are believed without their CRC
    bint strict              # offsets have no gaps: nothing was compacted away
    bint gentle              # the file is copied, piece by piece
    int64_t scanned_bytes    # that a CRC was made of

cdef int scan_init(scan_t* c, vfs_t* fs) noexcept nogil
cdef void scan_free(scan_t* c) noexcept nogil
# Be done with a file, which is still open: what was not in the page cache before does not stay there.
cdef void scan_leave(scan_t* c) noexcept nogil
cdef void scan_file(scan_t* c, int fd, int64_t size, int64_t base_offset) noexcept nogil
cdef int scan_batch(scan_t* c, int64_t position, batch_t* b) noexcept nogil
cdef void scan_accept(scan_t* c, const batch_t* b) noexcept nogil
cdef int scan_behind(scan_t* c, int64_t position, spot_t* out) noexcept nogil
cdef int scan_tail(scan_t* c, int64_t position, bint* torn) noexcept nogil
