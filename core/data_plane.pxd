# The data plane for Python.
from libc.stdint cimport int64_t

from pybroker.core.base.tls_socket cimport TlsSocket
from pybroker.core.log_manager cimport LogManager
from pybroker.core.plane.replica.replica_fetcher cimport replica_fetcher_t
from pybroker.core.plane.thread.reactor cimport plane_t
from pybroker.core.plane.thread.threads cimport threads_t


cdef class Plane:
    cdef plane_t state
    cdef threads_t made          # the reactors
    cdef list names              # of the reactors' threads, each with whether it fetches from leaders
    cdef int64_t adopted         # connections adopted since the start,
    cdef int64_t leaders         # and how many of them to leaders
    cdef LogManager owner
    cdef list threads            # none before start()
    cdef dict bells              # Partition -> the address of its bell_t
    cdef dict away               # {token: when it came, in ns} of requests that Python has not answered yet: their
                                 # connections are not freed
    cdef readonly int64_t queued_ns
    cdef int64_t published
    cdef tuple throttles         # keeps the buckets alive that the state points to
    cdef dict sockets  # connection id -> (descriptor, inode), so that a forked child closes the right descriptors
    cdef bint inherited          # this process is a forked child: the plane is unusable
    cdef object __weakref__
    cdef int check(self) except -1
    cdef int add(self, bint leader) except -1
    cdef int64_t take_over(
        self, int fd, int listener, replica_fetcher_t* fetcher, bint judged=*, TlsSocket tls=*,
        int64_t ends_ms=*) except -1
