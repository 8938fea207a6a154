"""TLS on a connected socket, as Python speaks it: the handshake, a login, a client's requests. The GIL is not held.

    TlsSocket(fd, context) ──handshake() until None──> recv, send ──> closed with its socket, or given to a plane
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, EPROTO
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.base.openssl cimport (
    SSL_CTRL_SET_TLSEXT_HOSTNAME, openssl_context, openssl_functions, openssl_t,
)
from pybroker.core.base.tls cimport (
    PIECE_BYTES, tls_end, tls_flush, tls_free, tls_handshake, tls_new, tls_recv, tls_send, tls_t, tls_unsent,
)

import os


def tls_available() -> bool:
    """Can connections have TLS in core? Otherwise Python's ssl module has to do it all."""
    return openssl_functions() != NULL


def set_ciphersuites(context not None, names) -> None:
    """Have a context speak TLS 1.3 by these cipher suites, which Python's ssl module cannot be told. ValueError."""
    cdef bytes text = ":".join(names).encode()
    cdef void* found = openssl_context(context)
    if openssl_functions().SSL_CTX_set_ciphersuites(found, <const char*>text) != 1:
        openssl_functions().ERR_clear_error()
        raise ValueError(f"OpenSSL does not have the cipher suites {', '.join(names)}")


def is_address(str host) -> bool:
    import ipaddress             # here: it takes as long to load as the rest of core
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


cdef class TlsSocket:
    """TLS by an ssl.SSLContext over a connected, non-blocking socket, whose descriptor stays its owner's.

    `host`: of a client, the name or address that it connects to; told to the server, and looked for in its certificate
    if the context says check_hostname. Not for two threads at a time. ValueError where `core.tls_available()` is False.
    """

    def __cinit__(self, int fd, context not None, *, bint server, str host=None):
        cdef void* found = openssl_context(context)
        if os.get_blocking(fd):
            raise ValueError("the socket blocks: TLS has something to send before what it waits for can come")
        self.context = context
        self.state = tls_new(openssl_functions(), found, fd, server)
        if self.state == NULL:
            raise MemoryError()
        if not server and host:
            self.expect(host)

    def __dealloc__(self):
        tls_free(self.state)

    cdef int expect(self, str host) except -1:
        """Who the other end has to be."""
        cdef const openssl_t* lib = self.state.lib
        cdef void* ssl = self.state.ssl
        cdef bint is_ip = is_address(host)
        cdef bytes name = host.encode("ascii" if is_ip else "idna")
        cdef int done = 1
        if not is_ip:
            lib.SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, 0, <char*>name)
        if self.context.check_hostname:
            if is_ip:
                done = lib.X509_VERIFY_PARAM_set1_ip_asc(lib.SSL_get0_param(ssl), <char*>name)
            else:
                done = lib.SSL_set1_host(ssl, <char*>name)
        if done != 1:
            raise ValueError(f"{host!r} is no name that a certificate could have")

    cdef int check(self) except -1:
        if self.state == NULL:
            raise ValueError("the socket was given away")
        return 0

    cdef str words(self):
        """Why the last call failed, as OpenSSL says it."""
        cdef const openssl_t* lib = self.state.lib
        cdef unsigned long code = lib.ERR_get_error()
        cdef const char* reason = lib.ERR_reason_error_string(code) if code else NULL
        cdef long verified = lib.SSL_get_verify_result(self.state.ssl)
        if reason == NULL:
            return "the other end closed the connection"
        said = reason.decode("ascii", "replace")
        if "unexpected eof" in said:
            return "the other end closed the connection"
        if "certificate verify failed" in said and verified:
            said = f"{said}: {lib.X509_verify_cert_error_string(verified).decode('ascii', 'replace')}"
        return said

    cdef int fail(self, str doing) except -1:
        said = self.words()
        raise ConnectionAbortedError(f"{doing}: {said}")

    def handshake(self) -> str | None:
        """Go on with the handshake: "read" or "write" is what the socket has to be ready for first, None the end.

        ConnectionAbortedError: it failed, and why; OSError."""
        cdef int status
        self.check()
        with nogil:
            status = tls_handshake(self.state)
        if status == 0:
            return None
        if status == -EAGAIN:
            return "write" if tls_unsent(self.state) else "read"
        if status == -EPROTO:
            self.fail("the TLS handshake failed")
        raise OSError(-status, os.strerror(-status))

    def recv_into(self, buffer) -> int:
        """Receive into a buffer; bytes, 0 at the end. BlockingIOError if there are none now, OSError."""
        cdef Py_buffer view
        cdef ssize_t got
        self.check()
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        with nogil:
            got = tls_recv(self.state, <uint8_t*>view.buf, view.len)
        PyBuffer_Release(&view)
        return self.outcome(got)

    def recv(self, int64_t n) -> bytes:
        """Receive up to n bytes; none at the end. As recv_into."""
        cdef bytearray into = bytearray(n)
        return bytes(memoryview(into)[:self.recv_into(into)])

    cdef Py_ssize_t outcome(self, ssize_t status) except -1:
        if status >= 0:
            return status
        if status == -EAGAIN or status == -EINTR:  # who waits for the socket is told again at once, if there is more
            raise BlockingIOError(EAGAIN, "nothing is there to be done now")
        if status == -EPROTO:
            self.fail("TLS failed")
        raise OSError(-status, os.strerror(-status))

    @property
    def pending(self) -> bool:
        """May recv have something though the socket has not?"""
        self.check()
        return self.state.lib.SSL_pending(self.state.ssl) > 0

    def send(self, data) -> int:
        """Send; how many of the bytes were. BlockingIOError: none, or not all that they have become: call it again with
        the same bytes once the socket takes more. OSError."""
        cdef Py_buffer view
        cdef int64_t n
        cdef int status
        self.check()
        if self.owed > 0:
            with nogil:
                status = tls_flush(self.state)
        else:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            n = min(view.len, <Py_ssize_t>PIECE_BYTES)
            status = 0
            if n > 0:
                with nogil:
                    status = tls_send(self.state, <const uint8_t*>view.buf, n)
            PyBuffer_Release(&view)
            if status == 0:
                self.owed = n
        if status == 0 and tls_unsent(self.state) > 0:
            status = -EAGAIN
        self.outcome(status)
        n, self.owed = self.owed, 0
        return n

    def end(self) -> None:
        """Say that nothing follows."""
        self.check()
        tls_end(self.state)

    cdef tls_t* give(self) except NULL:
        """To whom it belongs from now on."""
        cdef tls_t* state = self.state
        self.check()
        self.state = NULL
        return state

    # -- who it is -----------------------------------------------------------------------------------------------------

    def peer_certificate(self) -> bytes | None:
        """The other end's certificate (DER), None if it showed none."""
        cdef const openssl_t* lib
        cdef void* certificate
        cdef uint8_t* at = NULL
        cdef bytes out = None
        cdef int n
        self.check()
        lib = self.state.lib
        certificate = lib.SSL_get1_peer_certificate(self.state.ssl)
        if certificate == NULL:
            return None
        n = lib.i2d_X509(certificate, NULL)
        if n > 0:
            out = PyBytes_FromStringAndSize(NULL, n)
            at = <uint8_t*><char*>out
            lib.i2d_X509(certificate, &at)
        lib.X509_free(certificate)
        return out

    @property
    def version(self) -> str:
        """The protocol, like TLSv1.3."""
        self.check()
        return self.state.lib.SSL_get_version(self.state.ssl).decode()

    @property
    def cipher(self) -> str:
        """The cipher, like TLS_AES_128_GCM_SHA256; empty before the handshake."""
        cdef const void* found
        self.check()
        found = self.state.lib.SSL_get_current_cipher(self.state.ssl)
        return "" if found == NULL else self.state.lib.SSL_CIPHER_get_name(found).decode()

    @property
    def resumed(self) -> bool:
        """Does it go on with a session of before?"""
        self.check()
        return self.state.lib.SSL_session_reused(self.state.ssl) == 1
