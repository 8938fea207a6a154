# Background work on logs: write-behind, sealing, flushing, snapshots, index repair.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.context cimport context_t
from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.log.log_dir cimport log_dir_t

cdef int sync_names(log_t* l) noexcept nogil
cdef int log_flush(log_t* l) noexcept nogil
cdef int log_sync(log_t* l) noexcept nogil
cdef int log_write_epochs(log_t* l) noexcept nogil
cdef int log_close(log_t* l) noexcept nogil
cdef void flusher_run(context_t* c, log_dir_t* log_dir) noexcept nogil
