# The reactors of a plane, to which more may be added while it serves: for clients, and for connections to leaders.
from libc.stdint cimport int64_t

from pybroker.core.plane.thread.reactor cimport plane_t, reactor_t

cdef enum:
    THREADS_MAX = 1024           # of each kind

cdef struct threads_t:
    reactor_t* every[2 * THREADS_MAX]    # all reactors, in order of creation
    reactor_t* clients[THREADS_MAX]      # those for clients' connections
    reactor_t* leaders[THREADS_MAX]      # those for connections to leaders
    int count
    int clients_made
    int leaders_made
    int serving                  # how many of each take new connections: the first ones; the others keep theirs
    int fetching

cdef int threads_add(threads_t* t, plane_t* plane, bint leader) noexcept nogil
cdef void threads_drop_last(threads_t* t, bint leader) noexcept nogil
cdef reactor_t* threads_next(threads_t* t, int64_t clients, int64_t leaders, bint leader) noexcept nogil
