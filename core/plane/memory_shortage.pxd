# What a reactor does while memory is short: who waits, who goes on, who has to go.
from libc.stdint cimport int64_t

from pybroker.core.plane.conn cimport conn_t
from pybroker.core.plane.reactor cimport reactor_t

cdef enum:
    LOOK_MS = 250                # between two looks at who has to go

cdef void wait_in_line(reactor_t* r, conn_t* c, int64_t wanted) noexcept nogil
cdef void move_line(reactor_t* r) noexcept nogil
cdef void relieve(reactor_t* r) noexcept nogil
