# The data plane as the rest of the wall sees it.
from libc.stdint cimport int64_t

from pybroker.core.broker cimport Broker
from pybroker.core.plane.reactor cimport plane_t
from pybroker.core.plane.replica_fetcher cimport replica_fetcher_t
from pybroker.core.plane.threads cimport threads_t
from pybroker.core.base.tls_socket cimport TlsSocket


cdef class Plane:
    cdef plane_t state
    cdef threads_t made          # the reactors
    cdef list names              # of their threads, each with whether it copies from leaders
    cdef int64_t adopted         # connections, ever,
    cdef int64_t leaders         # and those of them to leaders
    cdef Broker owner
    cdef list threads            # none before start()
    cdef dict bells              # Partition -> the address of its bell_t
    cdef set away                # tokens of requests that were taken and not answered: their connections are not freed
    cdef int64_t published
    cdef tuple throttles         # the buckets of replication that the state points to
    cdef dict sockets            # connection id -> (descriptor, inode): which of its descriptors a forked child closes
    cdef bint inherited          # this process is such a child: the plane is out of use
    cdef object __weakref__
    cdef int check(self) except -1
    cdef int add(self, bint leader) except -1
    cdef int64_t take_over(
        self, int fd, int listener, replica_fetcher_t* fetcher, bint judged=*, TlsSocket tls=*,
        int64_t ends_ms=*) except -1
