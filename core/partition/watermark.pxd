# The watermarks of a partition.
from libc.stdint cimport int64_t

from pybroker.core.partition.partition cimport partition_t

cdef void watermark_publish_end(partition_t* p, int64_t end, bint transactions) noexcept nogil
