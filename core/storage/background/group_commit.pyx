"""Group commit: if a topic requires it, an acknowledgement waits until its records are on disk.

One thread per log dir takes all waiting requests at once and syncs each log. Requests for the same log share one
fdatasync, which covers all records appended before it began. Callbacks are called in the order in which the logs were
synced. A failed sync takes the whole log dir offline: the kernel reports the error only once.
"""

from libc.errno cimport EAGAIN, ENOMEM
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR
from pybroker.core.base.worker cimport task_t, worker_put
from pybroker.core.storage.background.flusher cimport log_sync
from pybroker.core.storage.log.log cimport log_dir_of, log_drop, log_durable, log_hold, log_offline, log_t


cdef void sync_put(sync_t* s, log_t* l, int64_t end, synced_fn done, void* owner) noexcept nogil:
    """Have the log dir's thread make a log durable up to `end`. `done` is called on success and on failure, by that
    thread or already here.

    The caller keeps `s` until `done` is called, and calls `sync_leave` then."""
    log_hold(l)
    s.task.run = work
    s.log = l
    s.end = end
    s.status = 0
    s.done = done
    s.owner = owner
    if not worker_put(&log_dir_of(l).syncer, &s.task):
        s.status = -EAGAIN
        done(s)


cdef void sync_leave(sync_t* s) noexcept nogil:
    log_drop(s.log)


cdef void forget(sync_t* s) noexcept nogil:
    sync_leave(s)
    free(s)


cdef int sync_unasked(log_t* l, int64_t end) noexcept nogil:
    """Make a log durable up to `end`, without a callback; 0 or -ENOMEM."""
    cdef sync_t* s = <sync_t*>calloc(1, sizeof(sync_t))
    if s == NULL:
        return -ENOMEM
    sync_put(s, l, end, forget, NULL)
    return 0


cdef void work(task_t* task) noexcept nogil:
    """Make a log durable, unless an earlier request did."""
    cdef sync_t* s = <sync_t*>task
    cdef log_t* l = s.log
    if log_offline(l):
        s.status = KAFKA_STORAGE_ERROR
    elif log_durable(l) < s.end:
        s.status = log_sync(l)
    s.done(s)
