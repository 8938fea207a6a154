"""The reactors of a plane by kind. None is freed before its plane, so an index always names the same reactor.

With fewer threads than before, the last ones take no new connections; they serve those that they have, and sleep
without any.
"""

from libc.errno cimport ENOSPC
from libc.stdint cimport int64_t

from pybroker.core.plane.thread.network_thread cimport reactor_free, reactor_new
from pybroker.core.plane.thread.reactor cimport plane_t, reactor_t


cdef int threads_add(threads_t* t, plane_t* plane, bint leader) noexcept nogil:
    """Create one more reactor, which takes no connections yet; 0 or -errno."""
    cdef reactor_t* r
    cdef int status
    if (t.leaders_made if leader else t.clients_made) == THREADS_MAX:
        return -ENOSPC
    status = reactor_new(plane, &r)
    if status < 0:
        return status
    t.every[t.count] = r
    t.count += 1
    if leader:
        t.leaders[t.leaders_made] = r
        t.leaders_made += 1
    else:
        t.clients[t.clients_made] = r
        t.clients_made += 1
    return 0


cdef void threads_drop_last(threads_t* t, bint leader) noexcept nogil:
    """Free the last reactor, which is of this kind, and has no thread and no connections."""
    t.count -= 1
    if leader:
        t.leaders_made -= 1
    else:
        t.clients_made -= 1
    reactor_free(t.every[t.count])


cdef reactor_t* threads_next(threads_t* t, int64_t clients, int64_t leaders, bint leader) noexcept nogil:
    """The reactor that takes the next connection, after so many of each kind: round robin."""
    if leader and t.fetching > 0:
        return t.leaders[leaders % t.fetching]
    return t.clients[(leaders if leader else clients) % t.serving]
