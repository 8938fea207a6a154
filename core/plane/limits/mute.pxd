# Connections that are not read for a while, because their clients exceeded their quotas (KIP-219).
from libc.stdint cimport int64_t

from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.thread.reactor cimport reactor_t

# Neither read nor execute anything of it for so long; outstanding responses are still sent.
cdef void mute(reactor_t* r, conn_t* c, int64_t ms) noexcept nogil

# Unmute connections whose time is over; all of them if the quotas changed.
cdef void unmute_due(reactor_t* r) noexcept nogil

# Let a muted connection end if its peer has closed it, unless requests of it are left.
cdef void mute_look(conn_t* c) noexcept nogil

# Charge the time of this thread since `began_ns` to the client; nothing if that is 0.
cdef void charge(reactor_t* r, conn_t* c, int64_t began_ns) noexcept nogil


cdef inline int64_t charge_from(const conn_t* c) noexcept nogil:
    """The time at which work for the client begins; 0: it has no request quota."""
    return monotonic_ns() if c.limits.quotas != NULL and c.limits.quotas.request != NULL else 0


cdef inline void mute_throttled(reactor_t* r, conn_t* c) noexcept nogil:
    """Mute it for the throttle time of its last response, if there is one."""
    if c.limits.throttle_ms > 0:
        mute(r, c, c.limits.throttle_ms)
