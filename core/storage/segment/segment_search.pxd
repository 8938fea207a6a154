# Finding batches in a segment: by offset, by position, by time.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.segment.index cimport index_t
from pybroker.core.storage.segment.open_files cimport files_t
from pybroker.core.storage.segment.segment cimport segment_t
from pybroker.core.storage.segment.spots cimport spots_t

cdef enum:
    WALK_BYTES = 4096
    BODY_ELSEWHERE = 0xFFFFFFFF  # more than any batch: batch_parse reads the header alone, its caller checks the size
    NOT_FOUND = -100001      # a status: there is no such batch below the limit
    DAMAGED = -100008        # a status: the batch is in a bad spot

cdef struct search_t:
    const segment_t* segment
    files_t* files
    const spots_t* spots     # of the segment when the search begins; NULL: no damage is known
    int64_t limit            # bytes of the file that are visible
    int64_t began            # where the walk from header to header began; -1: not yet
    int64_t asked            # the kernel was asked to read ahead up to here
    int64_t buffered         # position of the buffer
    size_t length            # bytes in it
    uint8_t buffer[<int>WALK_BYTES]

cdef void search_init(search_t* w, const segment_t* s, files_t* f, int64_t limit) noexcept nogil
cdef int search_header(search_t* w, int64_t* position, batch_t* out) noexcept nogil
cdef int search_body(search_t* w, int64_t position, const batch_t* b, uint8_t* body, size_t* n) noexcept nogil
cdef int search_to_offset(search_t* w, int64_t offset, int64_t* position, batch_t* out) noexcept nogil
cdef int search_to_boundary(search_t* w, int64_t start, int64_t most, int64_t* end) noexcept nogil
cdef int search_to_time(
    search_t* w, const index_t* times, int64_t timestamp, int64_t start, int64_t* position, batch_t* out) noexcept nogil
cdef int search_to_last(search_t* w, int64_t* position, batch_t* out) noexcept nogil
