# Segments that a start trusts.
from libc.stdint cimport int64_t

from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.recovery.recovery_state cimport recovery_t

cdef int open_sealed(log_t* l, int64_t base, int64_t next_base, recovery_t* r) noexcept nogil
cdef int open_last(log_t* l, int64_t base, recovery_t* r, int64_t* end) noexcept nogil
