# The log dirs of a broker, for Python.
from pybroker.core.storage.log.context cimport context_t
from pybroker.core.storage.log.log_dir cimport log_dir_t


cdef class LogDirs:
    cdef context_t* context
    cdef dict flushers           # log dir -> the thread of its flusher
    cdef bint closed
    cdef int pid                 # of the process that created it
    cdef object lock
    cdef log_dir_t* log_dir(self, str path) except NULL
    cdef void stop(self) except *
