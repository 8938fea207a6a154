# Python's handles to logs.
from pybroker.core.storage.log.log cimport log_t, view_t


cdef class Log:
    cdef log_t* log
    cdef object owner               # the LogManager: its context outlives every log
    cdef str name                   # topic-partition
    cdef readonly str directory
    cdef readonly str recovery      # what start-up repaired, in one line; empty if nothing
    cdef int check(self, int status, str doing) except -1
    cdef bint waited(self) noexcept nogil
    cdef view_t view(self) noexcept
