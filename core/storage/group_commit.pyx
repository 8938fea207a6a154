"""Group commit: where a topic asks for it, an acknowledgement waits until what it acknowledges is on disk.

One thread a log dir takes all that waits at once and makes each log durable; those that wait for the same log share one
fdatasync, and whatever was appended before it began is covered by it. Whoever waits is told in the order in which the
logs were done. A sync that fails takes the whole log dir offline: the kernel tells once and forgets.
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR
from pybroker.core.base.worker cimport task_t, worker_put
from pybroker.core.storage.flusher cimport log_sync
from pybroker.core.storage.log cimport log_drop, log_durable, log_hold, log_offline, log_t


cdef sync_t* sync_new(log_t* l, int64_t end, synced_fn done, void* owner, uint8_t* answer) noexcept nogil:
    cdef sync_t* s = <sync_t*>calloc(1, sizeof(sync_t))
    if s == NULL:
        return NULL
    log_hold(l)
    s.task.run = work
    s.log = l
    s.end = end
    s.done = done
    s.owner = owner
    s.answer = answer
    return s


cdef void sync_free(sync_t* s) noexcept nogil:
    log_drop(s.log)
    free(s)


cdef void finish(sync_t* s) noexcept nogil:
    if s.done != NULL:
        s.done(s)
    else:
        sync_free(s)


cdef void sync_put(sync_t* s) noexcept nogil:
    """Have its log dir's thread work at it; it is done, well or not, on another thread or already here."""
    if not worker_put(&s.log.log_dir.syncer, &s.task):
        s.status = -EAGAIN
        finish(s)


cdef void work(task_t* task) noexcept nogil:
    """Make a log durable, unless somebody before did."""
    cdef sync_t* s = <sync_t*>task
    cdef log_t* l = s.log
    if log_offline(l):
        s.status = KAFKA_STORAGE_ERROR
    elif log_durable(l) < s.end:
        s.status = log_sync(l)
    finish(s)
