# The open files of a segment: its data file and its indexes.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.mapping cimport map_t
from pybroker.core.base.page_cache cimport passed_t
from pybroker.core.base.vfs cimport vfs_t
from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.segment.index cimport index_t

# Reference counted: an open data file holds its indexes.
cdef struct indexes_t:
    int32_t refs
    index_t offsets
    index_t times                # of the active segment; see segment_times for a sealed one

# The files that reads of a segment need. Reference counted: a slice on its way to a socket outlives the segment.
cdef struct files_t:
    task_t closing               # closes them on another thread, if that takes long
    vfs_t* fs
    int32_t refs
    int32_t fd
    int32_t used                 # read since the last check for idle files
    passed_t passed              # pages passed by the cold-read thread, which alone uses this
    int64_t brought_to           # the end of the range that this thread brought in for a reader; 0: none
    int32_t look_ups             # the number of look-ups before there is a map; -1: a map was tried
    map_t* map                   # of a sealed segment's data file that is looked into again and again; else NULL
    indexes_t* indexes
    index_t* times               # a sealed segment's time index; NULL before the first look-up by time

cdef indexes_t* indexes_new() noexcept nogil
cdef void indexes_drop(void* indexes) noexcept nogil
cdef files_t* files_new(vfs_t* fs, int fd, indexes_t* indexes) noexcept nogil
cdef void files_hold(files_t* f) noexcept nogil

# The map of a data file, if it has at least `size` bytes; else NULL. The files are held, or the caller is pinned.
cdef const map_t* files_map(files_t* f, int64_t size) noexcept nogil
cdef void files_drop(void* files) noexcept nogil
cdef void close_counted(vfs_t* fs, int fd) noexcept nogil
