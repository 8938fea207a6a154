# The inbox of a reactor, for other threads, and its wake-up.
from libc.stdint cimport int32_t

from pybroker.core.partition.partition cimport watch_t
from pybroker.core.plane.connection.conn cimport inbox_t, note_t
from pybroker.core.plane.requests.fetch_session cimport waiter_t
from pybroker.core.plane.thread.reactor cimport plane_t, reactor_t
from pybroker.core.storage.background.group_commit cimport sync_t

cdef void inbox_leave(inbox_t* box, note_t* n) noexcept nogil
cdef void inbox_ring(inbox_t* box) noexcept nogil
cdef int32_t ask_to_close(plane_t* plane, reactor_t** reactors, int n, int32_t count, int32_t spared) noexcept nogil
cdef void synced(sync_t* s) noexcept nogil
cdef void warmed(void* owner) noexcept nogil
cdef void told(watch_t* w) noexcept nogil
cdef void news(waiter_t* w) noexcept nogil
cdef void take_inbox(reactor_t* r) noexcept nogil
cdef void take_told(reactor_t* r) noexcept nogil
