# The broker's context: the state that all of its logs share. No state outlives it and none is global.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.atomic cimport peek_i64
from pybroker.core.base.clock cimport boot_ms
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.base.reclamation cimport reclaim_t
from pybroker.core.base.vfs cimport vfs_t
from pybroker.core.base.worker cimport task_fn
from pybroker.core.storage.log.log_dir cimport log_dir_t

cdef enum:
    NO_MEMBER = 1                # as a lease: the cluster declared this broker dead, and others may lead

cdef struct context_t:
    vfs_t* fs
    reclaim_t reclaim
    pthread_mutex_t lock         # guards the list of log dirs, and stopping
    log_dir_t* log_dirs
    task_fn close_idle           # the task of a log dir's closer
    int32_t stopping
    int32_t no_cleaning          # stop running compactions
    int32_t suspects             # a read met an invalid batch in a segment of some log
    int64_t write_behind_bytes   # of one log, before the kernel is asked to begin writing
    int64_t lease_ms             # the lease's end by the clock since boot; until then it may act as leader alone
                                 # 0: it needs no lease; NO_MEMBER: registration lost, no roles from the controller yet
    int64_t idle_ms              # between two checks of a log dir's trash


cdef inline bint lease_lapsed(context_t* c) noexcept nogil:
    """True if other brokers may lead this broker's partitions without its knowledge."""
    cdef int64_t until = peek_i64(&c.lease_ms)
    return until != 0 and boot_ms() > until


cdef inline bint lease_is_lost(context_t* c) noexcept nogil:
    """True from the loss of the registration until the controller has sent roles to the next one."""
    return peek_i64(&c.lease_ms) == NO_MEMBER


cdef context_t* context_new(int64_t write_behind_bytes, int64_t idle_ms, task_fn close_idle) noexcept nogil
cdef void context_free(context_t* c) noexcept nogil
cdef void context_stop(context_t* c) noexcept nogil
cdef log_dir_t* context_log_dir(context_t* c, const char* path) noexcept nogil
