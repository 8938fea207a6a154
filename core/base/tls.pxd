# TLS over one connected, non-blocking socket, for both ends of the connection. No GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.openssl cimport openssl_t

cdef enum:
    RECORD_BYTES = 16384                                   # plain bytes in a record, at most
    PIECE_BYTES = 4 * RECORD_BYTES                         # plain bytes encrypted and sent in one go
    RECORD_BYTES_MIN = 512                                 # the smallest record size that a peer may ask for (RFC 6066)
    SEALED_MORE = 96                                       # bytes that any cipher adds to a record
    SEALED_BYTES = PIECE_BYTES + PIECE_BYTES // RECORD_BYTES_MIN * SEALED_MORE + 4096  # a piece encrypted, and an alert
    AHEAD_BYTES = 256 << 10                                # encrypted bytes read from the socket in one go

cdef struct tls_scratch_t:       # of a thread: data in progress within one call
    uint8_t plain[<int>PIECE_BYTES]
    uint8_t sealed[<int>SEALED_BYTES]
    uint8_t ahead[<int>AHEAD_BYTES]

cdef struct tls_t:
    const openssl_t* lib
    void* ssl
    int fd
    int32_t is_open              # the handshake is over
    int32_t ended                # the socket, or TLS on it, ended: there is nothing more to read
    int32_t broken               # nothing more can be sent, too
    int32_t quiet                # within a call: the socket has no more bytes
    int64_t room                 # within a call: bytes that may be read ahead
    int32_t reads_left           # within a call: reads that OpenSSL may still make, including those of empty records
    int32_t is_spent             # the last call ended because of reads_left; there may be more to read
    uint8_t* ahead  # encrypted bytes read ahead: in the scratch, or in `kept` after a call that ended with some left
    int64_t ahead_left
    uint8_t* kept
    int64_t kept_bytes
    uint8_t* out                 # encrypted, not sent yet
    int64_t out_at
    int64_t out_used
    int64_t out_capacity
    int32_t is_lent              # within a call: `out` points into the scratch
    tls_scratch_t* scratch       # of the thread that uses it; NULL: none

cdef tls_t* tls_new(const openssl_t* lib, void* context, int fd, bint is_server) noexcept nogil
cdef void tls_free(tls_t* t) noexcept nogil
cdef int tls_handshake(tls_t* t) noexcept nogil
cdef ssize_t tls_recv(tls_t* t, uint8_t* into, int64_t n) noexcept nogil
cdef ssize_t tls_peek(tls_t* t, uint8_t* into, int64_t n) noexcept nogil
cdef int tls_flush(tls_t* t) noexcept nogil
cdef int tls_send(tls_t* t, const uint8_t* data, int64_t n) noexcept nogil
cdef void tls_end(tls_t* t) noexcept nogil


cdef inline int64_t tls_unsent(const tls_t* t) noexcept nogil:
    """The number of bytes that are encrypted, but not sent yet."""
    return t.out_used - t.out_at


cdef inline int64_t tls_holds(const tls_t* t) noexcept nogil:
    """The bytes of memory held, beside OpenSSL's own."""
    return t.out_capacity + t.kept_bytes
