# What is open of a segment: its data file, and the indexes that it is searched by.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.mapping cimport map_t
from pybroker.core.base.page_cache cimport passed_t
from pybroker.core.base.vfs cimport vfs_t
from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.index cimport index_t

# Counted: an open file holds those that it is searched by.
cdef struct indexes_t:
    int32_t refs
    index_t offsets
    index_t times                # of the active segment; see segment_times for a sealed one

# What reading a segment needs open. Counted, because a slice on its way to a socket outlives the segment.
cdef struct files_t:
    task_t closing               # by another thread, where that takes its time
    vfs_t* fs
    int32_t refs
    int32_t fd
    int32_t used                 # read from since somebody looked
    passed_t passed              # by the thread that reads what is not in the page cache, alone
    int64_t brought_to           # so far it has brought in what a reader wants; 0: nothing
    int32_t look_ups             # so far, as long as there is no map; -1: it was time for one
    map_t* map                   # of the data file of a sealed segment that is looked into again and again; else NULL
    indexes_t* indexes
    index_t* times               # of a sealed segment that somebody looked into by time; NULL: nobody did

cdef indexes_t* indexes_new() noexcept nogil
cdef void indexes_drop(void* indexes) noexcept nogil
cdef files_t* files_new(vfs_t* fs, int fd, indexes_t* indexes) noexcept nogil
cdef void files_hold(files_t* f) noexcept nogil

# The map of a data file, of so many bytes; NULL if there is none. The files are held, or the caller is pinned.
cdef const map_t* files_map(files_t* f, int64_t size) noexcept nogil
cdef void files_drop(void* files) noexcept nogil
cdef void close_counted(vfs_t* fs, int fd) noexcept nogil
