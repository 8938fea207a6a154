# A Fetch that begins a session, or goes on with one.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.plane.conn cimport conn_t, operation_t
from pybroker.core.plane.fetch_find cimport fetcher_t

cdef int32_t begin_session(fetcher_t* f, int64_t now_ms) noexcept nogil
cdef int fetch_incremental(
    fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil
