# Fetch without Python: find, answer with ranges of files, or park until records come; in sessions or without.
from libc.stdint cimport int16_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.partition.partition cimport notify_fn
from pybroker.core.partition.registry cimport registry_t
from pybroker.core.plane.conn cimport conn_t, operation_t
from pybroker.core.plane.fetch_session cimport sessions_t
from pybroker.core.plane.fetch_wire cimport fetch_t
from pybroker.core.storage.cold_reads cimport warmed_fn

cdef struct fetcher_t:           # what a reactor fetches with
    fetch_t request
    registry_t* registry
    sessions_t* sessions
    int64_t bytes_max            # of an answer
    notify_fn notify             # what the watches of a Fetch that waits call
    warmed_fn warmed             # and who read for it
    int64_t errors               # partitions whose answer told one, since ever
    uint8_t* instead             # DECLINED: the frame that Python gets, to be freed; NULL: the one that came
    int64_t instead_bytes

cdef int fetch(
    fetcher_t* f, conn_t* c, operation_t** op, cursor_t* r, int16_t version, int64_t now_ms) noexcept nogil
cdef void fetcher_free(fetcher_t* f) noexcept nogil
