# The watermarks of a partition.
from libc.stdint cimport int64_t

from pybroker.core.storage.log cimport log_t

cdef void log_publish_end(log_t* l, int64_t end, bint transactions) noexcept nogil
