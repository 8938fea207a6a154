# A follower's turns: append a leader's response, and send the next Fetch.
from libc.stdint cimport int64_t

from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.thread.reactor cimport reactor_t

cdef enum replica_event_t:       # events of a partition for Python; after any but LOG_START it is fetched no longer
    DIVERGED                     # our log differs from the leader's, whose `epoch` ends at `offset`
    FAILED                       # `code`: an error code of the leader or of our append, or -errno
    LOG_START                    # the leader's log starts at `offset`
    SLOW                         # its disk is slow: its appends must be made by threads that may wait
    THROTTLED                    # it is behind, and nothing more may be copied for `offset` ms

cdef enum:
    EVENT_BYTES = 1 + 4 + 8 + 4 + 8  # event, code, the partition's id, epoch, offset

cdef const char* replica_fetch_serve(reactor_t* r, conn_t* c) noexcept nogil
cdef bint replica_fetch_hangs(reactor_t* r, conn_t* c) noexcept nogil
cdef const char* replica_fetch_silence(const conn_t* c, int64_t now_ms) noexcept nogil
