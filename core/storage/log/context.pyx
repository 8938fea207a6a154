"""The broker's context: its file calls, its pins, and its log dirs."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strcmp

from pybroker.core.base.atomic cimport cas_i32, load_ptr, store_ptr
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from pybroker.core.base.reclamation cimport reclaim_destroy, reclaim_init
from pybroker.core.base.vfs cimport vfs_free, vfs_new, vfs_stop
from pybroker.core.base.worker cimport task_fn, worker_put
from pybroker.core.storage.log.backlog cimport backlog_stop
from pybroker.core.storage.log.log_dir cimport log_dir_free, log_dir_new, log_dir_stop, log_dir_t


cdef void ask_closers(void* context) noexcept nogil:
    """Have each log dir's closer look for idle segments, as descriptors are scarce. On any thread."""
    cdef context_t* c = <context_t*>context
    cdef log_dir_t* d = <log_dir_t*>load_ptr(<void**>&c.log_dirs)
    while d != NULL:
        if cas_i32(&d.closing.asked, 0, 1):
            worker_put(&d.closer, &d.closing.task)
        d = d.next


cdef context_t* context_new(int64_t write_behind_bytes, int64_t idle_ms, task_fn close_idle) noexcept nogil:
    cdef context_t* c = <context_t*>calloc(1, sizeof(context_t))
    if c == NULL:
        return NULL
    c.fs = vfs_new()
    if c.fs == NULL:
        free(c)
        return NULL
    c.fs.budget.crowded = ask_closers
    c.fs.budget.owner = c
    reclaim_init(&c.reclaim)
    pthread_mutex_init(&c.lock, NULL)
    c.write_behind_bytes = write_behind_bytes
    c.idle_ms = idle_ms
    c.close_idle = close_idle
    return c


cdef void context_free(context_t* c) noexcept nogil:
    """Free the context after the flushers have stopped and no log is held."""
    cdef log_dir_t* d
    reclaim_destroy(&c.reclaim)
    while c.log_dirs != NULL:
        d = c.log_dirs
        c.log_dirs = d.next
        log_dir_free(d)
    pthread_mutex_destroy(&c.lock)
    vfs_free(c.fs)
    free(c)


cdef void context_stop(context_t* c) noexcept nogil:
    """Stop all threads once their queues are empty. The caller must join the flushers' threads."""
    cdef log_dir_t* first
    cdef log_dir_t* d
    pthread_mutex_lock(&c.lock)
    c.stopping = 1
    first = d = c.log_dirs
    pthread_mutex_unlock(&c.lock)
    while d != NULL:
        backlog_stop(&d.backlog)
        d = d.next
    d = first
    while d != NULL:
        log_dir_stop(d)
        d = d.next
    vfs_stop(c.fs)


cdef log_dir_t* context_log_dir(context_t* c, const char* path) noexcept nogil:
    """The log dir with this path, created at the first call; NULL without memory."""
    cdef log_dir_t* d
    pthread_mutex_lock(&c.lock)
    d = c.log_dirs
    while d != NULL and strcmp(d.path, path) != 0:
        d = d.next
    if d == NULL:
        d = log_dir_new(path, &c.fs.budget, c.close_idle)
        if d != NULL:
            d.next = c.log_dirs
            store_ptr(<void**>&c.log_dirs, d)
            if c.stopping:
                backlog_stop(&d.backlog)
    pthread_mutex_unlock(&c.lock)
    return d
