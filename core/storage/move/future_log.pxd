# The copy of a log in another log dir, which is to take its place: Kafka's future log.
from libc.stdint cimport int32_t, int64_t, uint64_t

from pybroker.core.base.page_cache cimport passed_t
from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.log.log_dir cimport log_dir_t

cdef enum:
    LATER = -100003              # a status: the log has changed meanwhile; copy on, and try again
    NOTHING_LEFT = -100004       # a status: all is copied that there is

cdef struct piece_t:             # a segment of the copy
    int64_t base_offset
    int64_t copied               # bytes; -1: its file is not created yet
    int32_t done                 # the segment is sealed, and all of the copy on disk, with its indexes

cdef struct future_t:            # used by one thread at a time
    log_t* log                   # held
    log_dir_t* log_dir           # of the copy
    int64_t number               # of this move: see segment_t.followed
    const char* directory        # topic-partition.<uuid>-future in that log dir
    piece_t* pieces              # ascending
    int64_t count
    int64_t capacity
    int64_t base_offset          # of the piece whose files are open; -1: none
    int fd_from
    int fd_to
    passed_t passed              # pages of the source that only this copy brought into the page cache
    int64_t begun                # bytes of the open file that the kernel was asked to write
    int64_t written              # bytes of it that were waited for
    int64_t synced_end           # all records of the log below are on disk in the copy
    uint64_t beside              # of the files beside the segments, as they were when they were copied
    int64_t held_us              # appends waited so long for the switch
    int64_t size                 # bytes of the copy, as of the last call of future_note; for any thread
    int64_t lag                  # how many offsets it lacked then

cdef future_t* future_new(log_t* l, log_dir_t* to, const char* directory) noexcept nogil
cdef void future_free(future_t* f) noexcept nogil
cdef void future_close(future_t* f) noexcept nogil
cdef int future_copy(future_t* f, int64_t most, int64_t* copied) noexcept nogil
cdef int future_settle(future_t* f) noexcept nogil
cdef void future_note(future_t* f) noexcept nogil

# For the switch: the files beside the segments as one number; the rest of the active segment; its files.
cdef uint64_t files_beside(const char* directory) noexcept nogil
cdef int future_open_active(future_t* f) noexcept nogil
cdef int future_copy_range(future_t* f, piece_t* p, int64_t end) noexcept nogil
