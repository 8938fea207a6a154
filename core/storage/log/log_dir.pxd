# A log dir: its threads, its flusher's queue, and whether its disk failed.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.budget cimport budget_t
from pybroker.core.base.chain cimport chain_t
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.base.worker cimport task_fn, task_t, worker_t
from pybroker.core.storage.log.backlog cimport backlog_t

cdef struct closing_t:       # closing idle files when descriptors are scarce
    task_t task
    int32_t asked            # queued for the closer
    int32_t stopping
    budget_t* budget
    pthread_mutex_t lock     # guards the chain
    chain_t logs             # of the log dir; the next one to visit is the first

cdef struct log_dir_t:
    log_dir_t* next
    worker_t syncer          # syncs the logs that acknowledgements wait for
    worker_t reader          # reads pages that are not in the page cache
    backlog_t backlog        # of its flusher
    worker_t closer          # closes idle files
    closing_t closing
    int32_t failed           # an errno: the disk failed, and the log dir is not trusted any more
    int32_t lack             # an errno: a call found no space or no right since Python last took it
    int32_t refusing         # an errno that appends are refused with, set by replication/disks/disk_space.py
    int64_t unread           # reads that failed
    char path[<int>2048]

cdef log_dir_t* log_dir_new(const char* path, budget_t* budget, task_fn close_idle) noexcept nogil
cdef void log_dir_stop(log_dir_t* d) noexcept nogil
cdef void log_dir_free(log_dir_t* d) noexcept nogil
cdef int log_dir_trust(log_dir_t* d, int status) noexcept nogil
cdef bint log_dir_unreadable(int error) noexcept nogil
