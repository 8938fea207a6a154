# Which connections a reactor has, and which of them have something to do in this turn.
from pybroker.core.conn cimport conn_t
from pybroker.core.reactor cimport reactor_t

cdef void link_newest(reactor_t* r, conn_t* c) noexcept nogil
cdef void unlink_conn(reactor_t* r, conn_t* c) noexcept nogil
cdef void make_ready(reactor_t* r, conn_t* c) noexcept nogil
cdef void unready(reactor_t* r, conn_t* c) noexcept nogil
