# The aborted transactions of a partition, in a Fetch response.
from libc.stdint cimport int64_t

from pybroker.core.base.cursor cimport writer_t
from pybroker.core.storage.segment.transaction_index cimport aborted_t

cdef void write_aborts(writer_t* w, const aborted_t* items, int64_t n, bint flexible) noexcept nogil
