# A Fetch that begins a session, or continues one.
from libc.stdint cimport int32_t, int64_t

from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.requests.fetch_find cimport fetcher_t
from pybroker.core.plane.requests.verdict cimport verdict_t

cdef int32_t begin_session(fetcher_t* f, int64_t now_ms) noexcept nogil
cdef verdict_t fetch_incremental(
    fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil
