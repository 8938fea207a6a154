"""Group commit: where a topic asks for it, an acknowledgement waits until what it acknowledges is on disk.

One thread a log dir takes all that waits at once and makes each log durable; those that wait for the same log share one
fdatasync, and whatever was appended before it began is covered by it. Whoever waits is told in the order in which the
logs were done. A sync that fails takes the whole log dir offline: the kernel tells once and forgets.
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free

from pybroker.core.atomic cimport store_i32
from pybroker.core.backlog cimport backlog_destroy, backlog_init
from pybroker.core.flusher cimport log_sync
from pybroker.core.idle cimport log_dir_close_idle
from pybroker.core.kafka cimport KAFKA_STORAGE_ERROR
from pybroker.core.log cimport log_drop, log_durable, log_hold, log_offline, log_t
from pybroker.core.quiesce cimport pthread_mutex_destroy, pthread_mutex_init
from pybroker.core.worker cimport task_t, worker_destroy, worker_init, worker_put, worker_stop


cdef syncer_t* syncer_new(const char* directory, budget_t* budget) noexcept nogil:
    """Of a log dir; its threads begin when they are first needed."""
    cdef syncer_t* s = <syncer_t*>calloc(1, sizeof(syncer_t))
    if s == NULL:
        return NULL
    worker_init(&s.worker)
    worker_init(&s.reader)
    worker_init(&s.closer)
    s.closing.task.run = log_dir_close_idle
    s.closing.budget = budget
    pthread_mutex_init(&s.closing.lock, NULL)
    backlog_init(&s.backlog)
    snprintf(s.directory, sizeof(s.directory), "%s", directory)
    return s


cdef void syncer_stop(syncer_t* s) noexcept nogil:
    """End the threads once nothing waits any more; what comes later fails at once."""
    worker_stop(&s.worker)
    worker_stop(&s.reader)
    store_i32(&s.closing.stopping, 1)
    worker_stop(&s.closer)


cdef void syncer_free(syncer_t* s) noexcept nogil:
    worker_destroy(&s.worker)
    worker_destroy(&s.reader)
    worker_destroy(&s.closer)
    pthread_mutex_destroy(&s.closing.lock)
    backlog_destroy(&s.backlog)
    free(s)


cdef sync_t* sync_new(void* log, int64_t end, synced_fn done, void* owner, uint8_t* answer) noexcept nogil:
    cdef sync_t* s = <sync_t*>calloc(1, sizeof(sync_t))
    if s == NULL:
        return NULL
    log_hold(<log_t*>log)
    s.task.run = work
    s.log = log
    s.end = end
    s.done = done
    s.owner = owner
    s.answer = answer
    return s


cdef void sync_free(sync_t* s) noexcept nogil:
    log_drop(<log_t*>s.log)
    free(s)


cdef void finish(sync_t* s) noexcept nogil:
    if s.done != NULL:
        s.done(s)
    else:
        sync_free(s)


cdef void sync_put(sync_t* s) noexcept nogil:
    """Have the syncer of its log dir work at it; it is done, well or not, on another thread or already here."""
    if not worker_put(&(<log_t*>s.log).syncer.worker, &s.task):
        s.status = -EAGAIN
        finish(s)


cdef void work(task_t* task) noexcept nogil:
    """Make a log durable, unless somebody before did."""
    cdef sync_t* s = <sync_t*>task
    cdef log_t* l = <log_t*>s.log
    if log_offline(l):
        s.status = KAFKA_STORAGE_ERROR
    elif log_durable(l) < s.end:
        s.status = log_sync(l)
    finish(s)
