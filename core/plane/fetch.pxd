# Fetch without Python: find, answer with ranges of files, or wait until records come; in sessions or without.
from libc.stdint cimport int16_t, int64_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.plane.conn cimport conn_t, operation_t
from pybroker.core.plane.fetch_find cimport fetcher_t

cdef int fetch(
    fetcher_t* f, conn_t* c, operation_t** op, cursor_t* r, int16_t version, int64_t now_ms) noexcept nogil
cdef void fetcher_free(fetcher_t* f) noexcept nogil
