# What an error of a disk means for the log dir that lies on it.
from libc.stdint cimport int64_t

from pybroker.core.log cimport log_t
from pybroker.core.syncer cimport syncer_t

cdef int log_dir_trust(syncer_t* log_dir, int status) noexcept nogil
cdef int log_trust(log_t* l, int status) noexcept nogil
cdef int log_note_unread(log_t* l, int status) noexcept nogil
cdef bint log_lost_file(log_t* l) noexcept nogil
cdef int64_t logs_lost(log_t** logs, int64_t n) noexcept nogil
