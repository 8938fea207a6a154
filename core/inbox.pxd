# What other threads leave for a reactor, and its wake-up.
from pybroker.core.partition cimport watch_t
from pybroker.core.reactor cimport note_t, reactor_t
from pybroker.core.syncer cimport sync_t

cdef void reactor_leave(reactor_t* r, note_t* n) noexcept nogil
cdef void reactor_wake(reactor_t* r) noexcept nogil
cdef void synced(sync_t* s) noexcept nogil
cdef void warmed(void* owner) noexcept nogil
cdef void told(watch_t* w) noexcept nogil
cdef void take_inbox(reactor_t* r) noexcept nogil
