# Reads of committed records only.
from libc.stdint cimport int64_t

from pybroker.core.partition.partition cimport partition_t, read_t
from pybroker.core.storage.segment.transaction_index cimport abort_list_t

cdef enum:
    UNREAD_INDEX = -100021       # a status: a transaction index must be read from the disk first

cdef int partition_read_committed(
    partition_t* p, int64_t offset, int64_t most, bint minimum_one, bint may_wait, read_t* out,
    abort_list_t* aborts) noexcept nogil
