# One data file of a log with its two indexes.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.atomic cimport cas_i32, store_ptr
from pybroker.core.base.files cimport iovec
from pybroker.core.base.reclamation cimport reclaim_t
from pybroker.core.base.vfs cimport vfs_t
from pybroker.core.storage.segment.index cimport index_t
from pybroker.core.storage.segment.open_files cimport files_t, indexes_t
from pybroker.core.storage.segment.spots cimport spots_t
from pybroker.core.storage.segment.transaction_index cimport aborts_t

cdef enum:
    PATH_BYTES = 4096
    RESERVE_MIN = 64 << 10       # space reserved ahead: as much again as is written, within these bounds
    RESERVE_MAX = 64 << 20
    RESERVE_UNIT = 2 << 20       # larger reservations are rounded up to a multiple: ext4 reads a folio within one
                                 # extent at once, but one across a border block by block, for a millisecond of CPU
    BEHIND_MAX = 64 << 20        # the most bytes of one segment that wait for write-behind

cdef enum index_bad_t:           # of a segment:
    INDEX_GOOD                   # no problem is known
    INDEX_BAD                    # rebuild the indexes
    INDEX_DOUBTED                # a look-up found a bad entry: rebuild them, if its files are still the open ones

cdef struct segment_t:
    vfs_t* fs
    const char* directory        # the partition's, which outlives its segments
    files_t* files               # NULL while it is not open
    indexes_t* indexes           # on the heap until the segment is sealed; then NULL: each open file has its own
    int64_t base_offset
    int64_t size                 # bytes that readers may see
    int64_t end_offset           # sealed: the offset after its last batch
    int64_t largest_timestamp    # -1 none; UNKNOWN for a sealed segment before the first look-up by time
    int64_t largest_offset       # last offset of the batch that first reached it
    int64_t first_timestamp      # of its first batch: rolls by time count from here; UNKNOWN while empty
    int64_t modified_ms          # of the file, used if the records have no timestamps
    int64_t since_entry          # bytes since the last index entry
    int64_t reserved             # bytes of reserved disk space
    int64_t behind               # bytes that the kernel was asked to write
    int64_t flushed              # bytes known to be on disk
    int64_t written              # bytes that the kernel has written, as waited for; under the flush mutex
    int32_t sealed
    int32_t index_bad
    files_t* doubted             # the files of the look-up that found a bad entry; only compared with `files`
    spots_t* spots               # NULL: no damage is known
    aborts_t* aborts             # its transaction index; NULL: empty, or not read yet
    int32_t aborts_unread        # its file was not read yet
    int32_t aborts_bad           # rebuild it
    int64_t open_after           # of a segment that was rolled: the oldest transaction open then began here; 0 unknown
    int64_t followed             # the number of the move that copies it from its start; 0: none, or it was cut since

cdef enum:
    UNKNOWN = -2


cdef inline void segment_doubt_index(const segment_t* s, const files_t* f) noexcept nogil:
    """Note that a look-up in these files found a bad entry. After a rebuild, readers may still use the old files for a
    while; a bad entry in those does not count."""
    store_ptr(<void**>&s.doubted, <void*>f)
    cas_i32(<int32_t*>&s.index_bad, INDEX_GOOD, INDEX_DOUBTED)


cdef void segment_path(const segment_t* s, const char* suffix, char* out) noexcept nogil
cdef segment_t* segment_new(vfs_t* fs, const char* directory, int64_t base_offset) noexcept nogil
cdef void segment_free(void* segment) noexcept nogil
cdef int segment_claim(segment_t* s) noexcept nogil
cdef int segment_create(segment_t* s, const char* suffix) noexcept nogil
cdef int segment_open(segment_t* s, const char* suffix, bint active) noexcept nogil
cdef int segment_files(segment_t* s, files_t** out) noexcept nogil
cdef int segment_visit(segment_t* s, files_t** out) noexcept nogil
cdef const index_t* segment_times(segment_t* s, files_t* f, index_t* own) noexcept nogil
cdef int segment_write(segment_t* s, iovec* v, int n, int64_t bytes) noexcept nogil
cdef void segment_note(
    segment_t* s, int64_t position, int64_t bytes, int64_t last_offset, int64_t max_timestamp,
    int64_t interval) noexcept nogil
cdef int segment_note_last(segment_t* s) noexcept nogil
cdef int segment_write_indexes(segment_t* s, const char* suffix, bint durable) noexcept nogil
cdef bint segment_is_behind(const segment_t* s, int64_t size, int64_t least) noexcept nogil
cdef int segment_give_back(segment_t* s) noexcept nogil
cdef int segment_seal(segment_t* s, reclaim_t* q) noexcept nogil
cdef int segment_flush(segment_t* s, int64_t size) noexcept nogil
cdef int segment_cut(segment_t* s, int64_t position) noexcept nogil
cdef int segment_rename(segment_t* s, const char* suffix_from, const char* suffix_to) noexcept nogil
cdef int segment_unlink(segment_t* s, const char* suffix) noexcept nogil
