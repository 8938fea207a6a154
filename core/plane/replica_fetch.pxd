# A follower's turns: what a leader sent is appended, and more is asked for.
from libc.stdint cimport int64_t

from pybroker.core.plane.conn cimport conn_t
from pybroker.core.plane.reactor cimport reactor_t

cdef enum replica_event_t:       # what Python is told of a partition; it is fetched no longer but with LOG_START
    DIVERGED                     # from `offset` on our log has what the leader's, of `epoch`, has not
    FAILED                       # `code`: a Kafka code, the leader's or ours, or -errno
    LOG_START                    # the leader's log starts at `offset`
    SLOW                         # its disk made somebody wait: what comes is for threads that may
    THROTTLED                    # it lags behind, and nothing more may be copied for `offset` ms

cdef enum:
    EVENT_BYTES = 1 + 4 + 8 + 4 + 8  # event, code, the partition's id, epoch, offset

cdef const char* replica_fetch_serve(reactor_t* r, conn_t* c) noexcept nogil
cdef bint replica_fetch_hangs(reactor_t* r, conn_t* c) noexcept nogil
cdef const char* replica_fetch_silence(const conn_t* c, int64_t now_ms) noexcept nogil
