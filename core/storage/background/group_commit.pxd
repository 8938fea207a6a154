# Group commit: a thread of a log dir syncs the logs that acknowledgements wait for.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.log.log cimport log_t

ctypedef void (*synced_fn)(sync_t* s) noexcept nogil

cdef struct sync_t:          # a request to make a log durable up to an offset
    task_t task
    log_t* log               # held
    int64_t end
    int32_t status           # 0, or the error
    synced_fn done           # called by the log dir's thread, which does not use the sync_t after that
    void* owner

cdef void sync_put(sync_t* s, log_t* l, int64_t end, synced_fn done, void* owner) noexcept nogil
cdef void sync_leave(sync_t* s) noexcept nogil
cdef int sync_unasked(log_t* l, int64_t end) noexcept nogil
