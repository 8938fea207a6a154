# Receiving and executing the requests of a connection.
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.thread.reactor cimport reactor_t

cdef void drain(reactor_t* r) noexcept nogil
cdef const char* serve(reactor_t* r, conn_t* c) noexcept nogil
cdef bint has_work(const conn_t* c) noexcept nogil
cdef void resume_due(reactor_t* r) noexcept nogil
