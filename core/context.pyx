"""The broker's context: its file calls, its pins, and what belongs to each of its log dirs."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strcmp

from pybroker.core.atomic cimport cas_i32, load_ptr, store_ptr
from pybroker.core.backlog cimport backlog_stop
from pybroker.core.quiesce cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, quiesce_destroy, quiesce_init,
)
from pybroker.core.syncer cimport syncer_free, syncer_new, syncer_stop, syncer_t
from pybroker.core.vfs cimport vfs_free, vfs_new, vfs_stop
from pybroker.core.worker cimport worker_put


cdef void close_idle(void* context) noexcept nogil:
    """Descriptors are scarce: have the closer of each log dir look for idle segments. Any thread."""
    cdef context_t* c = <context_t*>context
    cdef syncer_t* s = <syncer_t*>load_ptr(<void**>&c.syncers)
    while s != NULL:
        if cas_i32(&s.closing.asked, 0, 1):
            worker_put(&s.closer, &s.closing.task)
        s = s.next


cdef context_t* context_new(int64_t write_behind_bytes, int64_t idle_ms) noexcept nogil:
    cdef context_t* c = <context_t*>calloc(1, sizeof(context_t))
    if c == NULL:
        return NULL
    c.fs = vfs_new()
    if c.fs == NULL:
        free(c)
        return NULL
    c.fs.budget.crowded = close_idle
    c.fs.budget.owner = c
    quiesce_init(&c.quiesce)
    pthread_mutex_init(&c.lock, NULL)
    c.write_behind_bytes = write_behind_bytes
    c.idle_ms = idle_ms
    return c


cdef void context_free(context_t* c) noexcept nogil:
    """The flushers have stopped and nobody holds a log."""
    cdef syncer_t* s
    quiesce_destroy(&c.quiesce)
    while c.syncers != NULL:
        s = c.syncers
        c.syncers = s.next
        syncer_free(s)
    pthread_mutex_destroy(&c.lock)
    vfs_free(c.fs)
    free(c)


cdef void context_stop(context_t* c) noexcept nogil:
    """End all threads once nothing waits for them any more; the flushers' are the caller's to wait for."""
    cdef syncer_t* first
    cdef syncer_t* s
    pthread_mutex_lock(&c.lock)
    c.stopping = 1
    first = s = c.syncers
    pthread_mutex_unlock(&c.lock)
    while s != NULL:
        backlog_stop(&s.backlog)
        s = s.next
    s = first
    while s != NULL:
        syncer_stop(s)
        s = s.next
    vfs_stop(c.fs)


cdef syncer_t* context_syncer(context_t* c, const char* log_dir) noexcept nogil:
    """The syncer of a log dir, made at the first asking; NULL without memory."""
    cdef syncer_t* s
    pthread_mutex_lock(&c.lock)
    s = c.syncers
    while s != NULL and strcmp(s.directory, log_dir) != 0:
        s = s.next
    if s == NULL:
        s = syncer_new(log_dir, &c.fs.budget)
        if s != NULL:
            s.next = c.syncers
            store_ptr(<void**>&c.syncers, s)
            if c.stopping:
                backlog_stop(&s.backlog)
    pthread_mutex_unlock(&c.lock)
    return s
