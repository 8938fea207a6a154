# The checks of a produced batch that decide whether it can be appended without Python.
from libc.stdint cimport int16_t, int64_t

from pybroker.core.partition.append cimport checked_t
from pybroker.core.partition.partition cimport partition_t

cdef bint check_inside(
    partition_t* p, const checked_t* r, int16_t version, int64_t plain_most, int64_t* plain_bytes) noexcept nogil
cdef bint check_transaction(partition_t* p, const checked_t* r, int64_t* producer_id) noexcept nogil
