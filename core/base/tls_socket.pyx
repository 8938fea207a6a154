"""TLS on a connected socket for Python code: the handshake, a login, a client's requests. The GIL is not held.

    TlsSocket(fd, context) ──handshake() until None──> recv, send ──> closed with its socket, or handed to a plane
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, EPROTO
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.base.openssl cimport SSL_CTRL_SET_TLSEXT_HOSTNAME, openssl_context, openssl_functions, openssl_t
from pybroker.core.base.tls cimport (
    PIECE_BYTES, tls_end, tls_flush, tls_free, tls_handshake, tls_new, tls_recv, tls_send, tls_t, tls_unsent,
)

import os


def tls_available() -> bool:
    """True if core can do TLS; otherwise use Python's ssl module."""
    return openssl_functions() != NULL


def set_ciphersuites(context not None, names) -> None:
    """Set the cipher suites of a context for TLS 1.3, which Python's ssl module cannot do. Raises ValueError."""
    cdef bytes text = ":".join(names).encode()
    cdef void* found = openssl_context(context)
    if openssl_functions().SSL_CTX_set_ciphersuites(found, <const char*>text) != 1:
        openssl_functions().ERR_clear_error()
        raise ValueError(f"OpenSSL does not have the cipher suites {', '.join(names)}")


def is_address(str host) -> bool:
    import ipaddress             # here: loading it takes as long as the rest of core
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


cdef class TlsSocket:
    """TLS with an ssl.SSLContext over a connected, non-blocking socket; its owner keeps the descriptor.

    `host`: for a client, the name or address that it connects to. It is sent to the server, and checked against the
    server's certificate if the context has check_hostname. Only one thread at a time may use it. Raises ValueError if
    `core.tls_available()` is False.
    """

    def __cinit__(self, int fd, context not None, *, bint server, str host=None):
        cdef void* found = openssl_context(context)
        if os.get_blocking(fd):
            raise ValueError("the socket must be non-blocking: TLS may have to send before it can receive")
        self.context = context
        self.state = tls_new(openssl_functions(), found, fd, server)
        if self.state == NULL:
            raise MemoryError()
        if not server and host:
            self.expect(host)

    def __dealloc__(self):
        tls_free(self.state)

    cdef int expect(self, str host) except -1:
        """Set the name that the server's certificate has to have."""
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
            raise ValueError(f"{host!r} is not a valid host name for a certificate")

    cdef int check(self) except -1:
        if self.state == NULL:
            raise ValueError("the socket was handed to a data plane")
        return 0

    cdef str words(self):
        """The reason why the last call failed, from OpenSSL."""
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
        """Continue the handshake; return what the socket must be ready for first, "read" or "write", None at the end.

        Raises ConnectionAbortedError with the reason of a failure, and OSError."""
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
        """Receive into a buffer; return the number of bytes, 0 at the end. Raises BlockingIOError if there are none
        now, OSError."""
        cdef Py_buffer view
        cdef ssize_t got
        self.check()
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        with nogil:
            got = tls_recv(self.state, <uint8_t*>view.buf, view.len)
        PyBuffer_Release(&view)
        return self.outcome(got)

    def recv(self, int64_t n) -> bytes:
        """Receive up to n bytes; empty at the end. Raises as recv_into does."""
        cdef bytearray into = bytearray(n)
        return bytes(memoryview(into)[:self.recv_into(into)])

    cdef Py_ssize_t outcome(self, ssize_t status) except -1:
        if status >= 0:
            return status
        if status == -EAGAIN or status == -EINTR:  # after EINTR the socket is still readable, so a waiter wakes at once
            raise BlockingIOError(EAGAIN, "the TLS socket is not ready")
        if status == -EPROTO:
            self.fail("TLS failed")
        raise OSError(-status, os.strerror(-status))

    @property
    def pending(self) -> bool:
        """True if recv may return something although the socket is not readable."""
        self.check()
        return self.state.lib.SSL_pending(self.state.ssl) > 0

    def send(self, data) -> int:
        """Send; return how many of the bytes were sent. Raises OSError, and BlockingIOError if none or only a part of
        their encrypted form were: then call again with the same bytes once the socket is writable."""
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
        """Send a close_notify, as far as the socket takes it."""
        self.check()
        tls_end(self.state)

    cdef tls_t* give(self) except NULL:
        """Hand the state over to the caller, which has to free it."""
        cdef tls_t* state = self.state
        self.check()
        self.state = NULL
        return state

    # -- identity
    # ----------------------------------------------------------------------------------------------------------

    def peer_certificate(self) -> bytes | None:
        """The peer's certificate (DER); None if it sent none."""
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
        """The protocol version, like TLSv1.3."""
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
        """True if it resumed an earlier session."""
        self.check()
        return self.state.lib.SSL_session_reused(self.state.ssl) == 1
