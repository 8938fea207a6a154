# Group commit: a thread of a log dir makes durable what its acknowledgements wait for.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.log cimport log_t

ctypedef void (*synced_fn)(sync_t* s) noexcept nogil

cdef struct sync_t:          # somebody waits for a log to be durable up to an offset
    task_t task
    log_t* log               # held
    int64_t end
    int32_t status           # 0, or why it is not
    synced_fn done           # called by the log dir's thread, which then forgets it
    void* owner

cdef void sync_put(sync_t* s, log_t* l, int64_t end, synced_fn done, void* owner) noexcept nogil
cdef void sync_leave(sync_t* s) noexcept nogil
cdef int sync_unasked(log_t* l, int64_t end) noexcept nogil
