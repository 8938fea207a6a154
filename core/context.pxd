# The broker's context: what all of its logs share. No state outlives it and none is global.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.quiesce cimport pthread_cond_t, pthread_mutex_t, quiesce_t
from pybroker.core.syncer cimport syncer_t
from pybroker.core.vfs cimport vfs_t

cdef struct work_t:              # embedded in what the flusher works on
    void* owner
    work_t* next
    int32_t queued

cdef struct trash_t:             # a path to remove once its delay is over
    trash_t* next
    int64_t due_ms
    int32_t directory            # remove the files in it, then itself
    char* path

cdef struct context_t:
    vfs_t* fs
    quiesce_t quiesce
    pthread_mutex_t lock         # guards the queue, the trash and stopping
    pthread_cond_t wake
    work_t* first
    work_t* last
    trash_t* trash
    int32_t stopping
    syncer_t* syncers            # of the log dirs; added to under the lock
    int32_t no_cleaning          # compaction ends where it is
    int64_t write_behind_bytes   # of one log, before the kernel is asked to begin writing
    int64_t idle_ms              # between two looks at the trash

cdef context_t* context_new(int64_t write_behind_bytes, int64_t idle_ms) noexcept nogil
cdef void context_free(context_t* c) noexcept nogil
cdef bint context_queue(context_t* c, work_t* w) noexcept nogil
cdef work_t* context_next(context_t* c) noexcept nogil
cdef void context_stop(context_t* c) noexcept nogil
cdef syncer_t* context_syncer(context_t* c, const char* log_dir) noexcept nogil
cdef int context_discard(context_t* c, const char* path, bint directory, int64_t delay_ms) noexcept nogil
cdef void context_empty_trash(context_t* c, int64_t now_ms) noexcept nogil
