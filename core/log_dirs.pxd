# The log dirs of a broker as Python holds them.
from pybroker.core.storage.context cimport context_t
from pybroker.core.storage.log_dir cimport log_dir_t


cdef class LogDirs:
    cdef context_t* context
    cdef dict flushers           # log dir -> its flusher's thread
    cdef bint closed
    cdef int pid                 # of the process that made it
    cdef object lock
    cdef log_dir_t* log_dir(self, str path) except NULL
    cdef void stop(self) except *
