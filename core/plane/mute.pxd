# Connections that are not read for a while, because their clients did more than their quotas allow (KIP-219).
from libc.stdint cimport int64_t

from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.plane.conn cimport conn_t
from pybroker.core.plane.reactor cimport reactor_t

# Neither read nor execute anything of it for so long; what it is owed is sent.
cdef void mute(reactor_t* r, conn_t* c, int64_t ms) noexcept nogil

# Let those go on whose time is over; all of them where quotas are others now.
cdef void unmute_due(reactor_t* r) noexcept nogil

# See that one which is muted ends with its peer, unless that left requests.
cdef void mute_look(conn_t* c) noexcept nogil

# The time of this thread since `began_ns` was its client's, unless that is 0.
cdef void charge(reactor_t* r, conn_t* c, int64_t began_ns) noexcept nogil


cdef inline int64_t charge_from(const conn_t* c) noexcept nogil:
    """When what is done for it begins; 0: nobody asks for the time."""
    return monotonic_ns() if c.quotas != NULL and c.quotas.request != NULL else 0


cdef inline void mute_throttled(reactor_t* r, conn_t* c) noexcept nogil:
    """If its last answer says that its client has to wait."""
    if c.throttle_ms > 0:
        mute(r, c, c.throttle_ms)
