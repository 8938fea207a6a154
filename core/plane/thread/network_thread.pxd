# A network thread: creation, turns, and its end.
from libc.stdint cimport int64_t

from pybroker.core.plane.thread.reactor cimport plane_t, reactor_t

cdef int reactor_new(plane_t* plane, reactor_t** out) noexcept nogil
cdef void reactor_free(reactor_t* r) noexcept nogil
cdef void reactor_hang_up(reactor_t* r) noexcept nogil
cdef void reactor_step(reactor_t* r, int64_t timeout_ms) noexcept nogil
cdef void reactor_run(reactor_t* r) noexcept nogil
