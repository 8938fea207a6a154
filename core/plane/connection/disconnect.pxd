# The end of a connection.
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.thread.reactor cimport reactor_t

cdef void close_conn(reactor_t* r, conn_t* c, const char* reason) noexcept nogil
cdef void close_longest_silent(reactor_t* r) noexcept nogil
cdef void forget(reactor_t* r, conn_t* c) noexcept nogil
cdef void stop_acks(reactor_t* r, conn_t* c) noexcept nogil
cdef void stop_waiting(reactor_t* r, conn_t* c) noexcept nogil
cdef void end(reactor_t* r, conn_t* c) noexcept nogil
