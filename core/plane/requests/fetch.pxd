# Fetch without Python: find records, answer with ranges of files, or wait for records; with or without a session.
from libc.stdint cimport int16_t, int64_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.requests.fetch_find cimport fetcher_t
from pybroker.core.plane.requests.verdict cimport verdict_t

cdef verdict_t fetch(
    fetcher_t* f, conn_t* c, operation_t** op, cursor_t* r, int16_t version, int64_t now_ms) noexcept nogil
cdef void fetcher_free(fetcher_t* f) noexcept nogil
