# A socket with TLS, as Python code sees it.
from libc.stdint cimport int64_t

from pybroker.core.base.tls cimport tls_t


cdef class TlsSocket:
    cdef tls_t* state
    cdef object context          # keeps its SSL_CTX alive
    cdef int64_t owed            # plain bytes that are encrypted; send returns their number once they are sent
    cdef int check(self) except -1
    cdef int expect(self, str host) except -1
    cdef Py_ssize_t outcome(self, ssize_t status) except -1
    cdef int fail(self, str doing) except -1
    cdef str words(self)
    cdef tls_t* give(self) except NULL
