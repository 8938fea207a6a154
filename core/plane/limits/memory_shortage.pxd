# Memory shortage on a reactor: which connections wait, go on, or are closed.
from libc.stdint cimport int64_t

from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.thread.reactor cimport reactor_t

cdef enum:
    LOOK_MS = 250                # between two checks for connections to close

cdef void wait_in_line(reactor_t* r, conn_t* c, int64_t wanted) noexcept nogil
cdef void move_line(reactor_t* r) noexcept nogil
cdef void relieve(reactor_t* r) noexcept nogil
