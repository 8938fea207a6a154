"""Group commit: where a topic asks for it, an acknowledgement waits until what it acknowledges is on disk.

One thread a log dir takes all that waits at once and makes each log durable; those that wait for the same log share one
fdatasync, and whatever was appended before it began is covered by it. Whoever waits is told in the order in which the
logs were done. A sync that fails takes the whole log dir offline: the kernel tells once and forgets.
"""

from libc.errno cimport EAGAIN, ENOMEM
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR
from pybroker.core.base.worker cimport task_t, worker_put
from pybroker.core.storage.flusher cimport log_sync
from pybroker.core.storage.log cimport log_drop, log_durable, log_hold, log_offline, log_t


cdef void sync_put(sync_t* s, log_t* l, int64_t end, synced_fn done, void* owner) noexcept nogil:
    """Have a log's thread make it durable up to `end`: `done` is called then, well or not, by it or already here.

    The memory of `s` is the caller's, until it was told; then it calls `sync_leave`."""
    log_hold(l)
    s.task.run = work
    s.log = l
    s.end = end
    s.status = 0
    s.done = done
    s.owner = owner
    if not worker_put(&l.log_dir.syncer, &s.task):
        s.status = -EAGAIN
        done(s)


cdef void sync_leave(sync_t* s) noexcept nogil:
    log_drop(s.log)


cdef void forget(sync_t* s) noexcept nogil:
    sync_leave(s)
    free(s)


cdef int sync_unasked(log_t* l, int64_t end) noexcept nogil:
    """Likewise, where nobody waits; 0 or -ENOMEM."""
    cdef sync_t* s = <sync_t*>calloc(1, sizeof(sync_t))
    if s == NULL:
        return -ENOMEM
    sync_put(s, l, end, forget, NULL)
    return 0


cdef void work(task_t* task) noexcept nogil:
    """Make a log durable, unless somebody before did."""
    cdef sync_t* s = <sync_t*>task
    cdef log_t* l = s.log
    if log_offline(l):
        s.status = KAFKA_STORAGE_ERROR
    elif log_durable(l) < s.end:
        s.status = log_sync(l)
    s.done(s)
