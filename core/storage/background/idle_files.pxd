# Closing the files of idle segments.
from pybroker.core.base.worker cimport task_t
from pybroker.core.storage.log.log cimport log_t

cdef enum idle_t:
    IDLE_SEALED              # sealed segments that were not read since the last call
    IDLE_ALL                 # active segments as well
    IDLE_NOW                 # all, used or not

cdef void idle_add(log_t* l) noexcept nogil
cdef void idle_remove(log_t* l) noexcept nogil
cdef int log_close_idle(log_t* l, idle_t which) noexcept nogil
cdef void log_dir_close_idle(task_t* task) noexcept nogil
