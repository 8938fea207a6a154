# The queue of one log dir's flusher: logs to work on, and paths to remove.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.pthread cimport pthread_cond_t, pthread_mutex_t
from pybroker.core.base.vfs cimport vfs_t

cdef struct work_t:              # embedded in the log that the flusher works on
    void* owner
    work_t* next
    int32_t queued

cdef struct trash_t:             # a path to remove once its delay is over
    trash_t* next
    int64_t due_ms
    int32_t directory            # remove the files in it, then itself
    char* path

cdef struct backlog_t:
    pthread_mutex_t lock         # guards all below; not held during file calls
    pthread_cond_t wake
    work_t* first
    work_t* last
    trash_t* trash
    int32_t stopping

cdef void backlog_init(backlog_t* b) noexcept nogil
cdef void backlog_destroy(backlog_t* b) noexcept nogil
cdef bint backlog_put(backlog_t* b, work_t* w) noexcept nogil
cdef work_t* backlog_next(backlog_t* b, int64_t idle_ms) noexcept nogil
cdef void backlog_stop(backlog_t* b) noexcept nogil
cdef int backlog_discard(backlog_t* b, const char* path, bint directory, int64_t delay_ms) noexcept nogil
cdef void backlog_empty_trash(backlog_t* b, vfs_t* fs, int64_t now_ms) noexcept nogil
