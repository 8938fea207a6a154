# The switch of a log to its copy in another log dir.
from libc.stdint cimport int64_t

from pybroker.core.storage.move.future_log cimport future_t

cdef int future_switch(future_t* f, int64_t log_start, const char* name, const char* left) noexcept nogil
