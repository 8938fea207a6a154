# A range of a log file, for Python.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport found_t, log_t


cdef class Slice:
    cdef found_t found
    cdef log_t* log
    cdef int64_t generation
    cdef object owner               # the LogManager: its context outlives every log
    cdef int check(self) except -1
    cdef int borrow(self) except -1
    cdef int refuse(self) except -1
    cdef int check_read(self, int status, bint short) except -1
