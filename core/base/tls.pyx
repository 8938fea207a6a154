"""TLS over one connected, non-blocking socket (RFC 8446, RFC 5246): OpenSSL encrypts, this module does socket I/O.

OpenSSL reads and writes encrypted bytes through two callbacks. So a receiving call reads the socket in large pieces,
and a sending call sends all records of a large piece at once, where OpenSSL alone would make two system calls for
each record of 16 KiB. A call reads ahead only as many bytes as its caller has room for, except for the start of a
record, which OpenSSL keeps. Bytes that a socket does not take stay, encrypted, and are sent before any others.

Records may be tiny, or empty (RFC 8446, 4.6.3), and cost as much as full ones. So a call ends after a fixed number of
records, and no peer gets more of a thread's time than others. Bytes read ahead by then are kept for the next call.

One thread at a time uses a tls_t. The owner of the descriptor closes it.
"""

from libc.errno cimport EAGAIN, EINTR, ENOMEM, EPROTO, errno
from libc.stdint cimport INT32_MAX, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from pybroker.core.base.openssl cimport (
    BIO_CTRL_EOF, BIO_CTRL_FLUSH, BIO_FLAGS_READ, BIO_FLAGS_RWS, BIO_FLAGS_SHOULD_RETRY, BIO_TYPE_SOURCE_SINK,
    SSL_CTRL_MODE, SSL_ERROR_WANT_READ, SSL_ERROR_ZERO_RETURN, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, SSL_MODE_AUTO_RETRY,
    SSL_MODE_RELEASE_BUFFERS, openssl_t,
)
from pybroker.core.base.socket cimport MSG_NOSIGNAL, recv, send

cdef enum:
    AHEAD_LEAST = 4 * RECORD_BYTES       # with less room, records are read one by one
    RECORD_WIRE_BYTES = RECORD_BYTES + 2048
    READS_MAX = 256                      # reads by OpenSSL in one call: two for each record
    OUT_MAX = 1 << 20                    # replies to TLS messages of a peer that does not read them
    OUT_MIN = 4096

cdef void* method = NULL                 # BIO_METHOD, shared by all connections


# -- callbacks of OpenSSL ----------------------------------------------------------------------------------------------

cdef ssize_t read_socket(tls_t* t, uint8_t* into, int64_t n) noexcept nogil:
    """Read bytes from the socket; their number, 0 at the end or after a fatal error, -1 if there are none now."""
    cdef ssize_t got
    if t.quiet:
        return -1
    got = recv(t.fd, into, n, 0)
    while got < 0 and errno == EINTR:
        got = recv(t.fd, into, n, 0)
    if got < 0 and errno == EAGAIN:
        t.quiet = 1
        return -1
    if got <= 0:
        t.ended = 1
        return 0
    if got < n:
        t.quiet = 1
    return got


cdef int bio_read(void* bio, char* into, int n) noexcept nogil:
    cdef const openssl_t* lib
    cdef tls_t* t
    cdef ssize_t got
    t = <tls_t*>functions.BIO_get_data(bio)
    lib = t.lib
    lib.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY)
    t.reads_left -= 1
    if t.reads_left < 0:
        t.is_spent = 1
        got = -1
    elif t.ahead_left == 0 and t.room >= AHEAD_LEAST:
        got = read_socket(t, t.scratch.ahead, min(<int64_t>AHEAD_BYTES, t.room))
        if got > 0:
            t.ahead = t.scratch.ahead
            t.ahead_left = got
    elif t.ahead_left == 0:
        got = read_socket(t, <uint8_t*>into, n)
        if got > 0:
            return <int>got
    else:
        got = 1
    if got < 0:
        lib.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
    if got <= 0:
        return <int>got
    got = min(<int64_t>n, t.ahead_left)
    memcpy(into, t.ahead, got)
    t.ahead += got
    t.ahead_left -= got
    return <int>got


cdef int bio_write(void* bio, const char* data, int n) noexcept nogil:
    cdef tls_t* t = <tls_t*>functions.BIO_get_data(bio)
    cdef int64_t wanted = t.out_used + n
    cdef int64_t capacity = max(t.out_capacity, <int64_t>OUT_MIN)
    cdef uint8_t* out
    t.lib.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY)
    if wanted > t.out_capacity:
        if t.is_lent or wanted > OUT_MAX:
            return -1
        while capacity < wanted:
            capacity *= 2
        out = <uint8_t*>realloc(t.out, capacity)
        if out == NULL:
            return -1
        t.out = out
        t.out_capacity = capacity
    memcpy(t.out + t.out_used, data, n)
    t.out_used = wanted
    return n


cdef long bio_ctrl(void* bio, int command, long number, void* value) noexcept nogil:
    if command == BIO_CTRL_EOF:
        return (<tls_t*>functions.BIO_get_data(bio)).ended
    return command == BIO_CTRL_FLUSH


# -- life --------------------------------------------------------------------------------------------------------------

cdef const openssl_t* functions = NULL   # of the one library


cdef bint prepare(const openssl_t* lib) noexcept nogil:
    """Create the method shared by all connections, once. The caller holds the GIL."""
    global functions, method
    if method == NULL:
        functions = lib
        method = lib.BIO_meth_new(lib.BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, b"pybroker socket")
        if method != NULL:
            lib.BIO_meth_set_read(method, bio_read)
            lib.BIO_meth_set_write(method, bio_write)
            lib.BIO_meth_set_ctrl(method, bio_ctrl)
    return method != NULL


cdef tls_t* tls_new(const openssl_t* lib, void* context, int fd, bint is_server) noexcept nogil:
    """TLS with an SSL_CTX on a connected socket, before the handshake. The caller holds the GIL. NULL without
    memory."""
    cdef tls_t* t = <tls_t*>calloc(1, sizeof(tls_t))
    cdef void* bio = NULL
    if t != NULL and prepare(lib):
        t.lib = lib
        t.fd = fd
        t.ssl = lib.SSL_new(context)
        bio = lib.BIO_new(method)
    if t == NULL or t.ssl == NULL or bio == NULL:
        tls_free(t)
        return NULL
    lib.BIO_set_data(bio, t)
    lib.BIO_set_init(bio, 1)
    lib.SSL_set_bio(t.ssl, bio, bio)     # the SSL takes over the reference to the bio
    lib.SSL_ctrl(
        t.ssl, SSL_CTRL_MODE,
        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_AUTO_RETRY | SSL_MODE_RELEASE_BUFFERS, NULL)
    if is_server:
        lib.SSL_set_accept_state(t.ssl)
    else:
        lib.SSL_set_connect_state(t.ssl)
    return t


cdef void tls_free(tls_t* t) noexcept nogil:
    if t == NULL:
        return
    if t.ssl != NULL:
        t.lib.SSL_free(t.ssl)
    free(t.out)
    free(t.kept)
    free(t)


cdef int fail(tls_t* t) noexcept nogil:
    """Mark the connection broken after a fatal error of OpenSSL, and send the alert that may be queued."""
    t.broken = t.ended = 1
    t.ahead_left = 0
    tls_flush(t)
    return -EPROTO


cdef void begin(tls_t* t) noexcept nogil:
    """Begin a receiving call."""
    t.room = 0
    t.quiet = t.is_spent = 0
    t.reads_left = READS_MAX


cdef int tls_handshake(tls_t* t) noexcept nogil:
    """Continue the handshake. 0: it is over; -EAGAIN: the socket must first deliver more, or take `tls_unsent`;
    -EPROTO: it failed. The reason is in OpenSSL's error queue, except if the peer just closed."""
    cdef int status, code
    begin(t)
    status = tls_flush(t)
    if status < 0:
        return status
    t.lib.ERR_clear_error()
    status = t.lib.SSL_do_handshake(t.ssl)
    if status == 1:
        t.is_open = 1
        return tls_flush(t)
    code = t.lib.SSL_get_error(t.ssl, status)
    if code != SSL_ERROR_WANT_READ:
        return fail(t)
    status = tls_flush(t)
    return status if status < 0 else -EAGAIN


cdef void tls_end(tls_t* t) noexcept nogil:
    """Send the peer a close_notify, as far as the socket takes it."""
    if t.is_open and not t.broken and tls_unsent(t) == 0:
        t.lib.ERR_clear_error()
        t.lib.SSL_shutdown(t.ssl)
        tls_flush(t)


# -- in ----------------------------------------------------------------------------------------------------------------

cdef ssize_t outcome(tls_t* t, int status) noexcept nogil:
    """The result of a call that returned no bytes: 0 at the end, or -errno."""
    cdef int code = t.lib.SSL_get_error(t.ssl, status)
    if code == SSL_ERROR_WANT_READ:
        return -EINTR if t.is_spent else -EAGAIN
    if code == SSL_ERROR_ZERO_RETURN or t.ended:
        t.ended = 1
        return 0
    return fail(t)


cdef int keep_ahead(tls_t* t) noexcept nogil:
    """Keep bytes that were read ahead for the next call; 0 or -ENOMEM."""
    cdef uint8_t* own
    if t.ahead_left == 0 or t.broken:
        free(t.kept)
        t.kept = NULL
        t.kept_bytes = 0
        return 0
    if t.ahead >= t.kept and t.ahead < t.kept + t.kept_bytes:
        return 0
    own = <uint8_t*>malloc(t.ahead_left)
    if own == NULL:
        return -ENOMEM
    memcpy(own, t.ahead, t.ahead_left)
    free(t.kept)
    t.kept = t.ahead = own
    t.kept_bytes = t.ahead_left
    return 0


cdef ssize_t tls_recv(tls_t* t, uint8_t* into, int64_t n) noexcept nogil:
    """Receive up to n bytes: fewer if no more are there now, or if the call read enough records (`is_spent`). Return
    the number of bytes, 0 at the end, -EAGAIN, -EINTR if there may be more at once, -EPROTO, -ENOMEM."""
    cdef int64_t total = 0
    cdef int got = 0, wanted
    cdef ssize_t status = 0
    if t.broken:
        return -EPROTO
    begin(t)
    while total < n and not t.is_spent:
        # With the record that has begun, the bytes read ahead decrypt to no more than the caller has room for.
        t.room = n - total - RECORD_WIRE_BYTES if t.scratch != NULL else 0
        t.lib.ERR_clear_error()
        wanted = <int>min(n - total, <int64_t>INT32_MAX)
        got = t.lib.SSL_read(t.ssl, into + total, wanted)
        if got <= 0:
            status = outcome(t, got)
            break
        total += got
        if got < wanted and t.quiet and t.ahead_left == 0:
            break                # the record is used up and nothing follows; asking again would be a system call
    if t.out_used > 0 and status != -EPROTO:
        tls_flush(t)             # TLS's own messages: a new key
    if keep_ahead(t) < 0:
        t.broken = t.ended = 1
        return -ENOMEM
    return total if total > 0 else status


cdef ssize_t tls_peek(tls_t* t, uint8_t* into, int64_t n) noexcept nogil:
    """Copy what tls_recv would receive, at most one record; the same results."""
    cdef int got
    if t.broken:
        return -EPROTO
    begin(t)
    t.lib.ERR_clear_error()
    got = t.lib.SSL_peek(t.ssl, into, <int>min(n, <int64_t>INT32_MAX))
    return got if got > 0 else outcome(t, got)


# -- out ---------------------------------------------------------------------------------------------------------------

cdef int tls_flush(tls_t* t) noexcept nogil:
    """Send the encrypted bytes. 0: all are sent; otherwise -errno, -EAGAIN included."""
    cdef ssize_t sent
    while t.out_at < t.out_used:
        sent = send(t.fd, t.out + t.out_at, t.out_used - t.out_at, MSG_NOSIGNAL)
        if sent >= 0:
            t.out_at += sent
        elif errno != EINTR:
            return -errno
    t.out_at = t.out_used = 0
    if not t.is_lent and t.out != NULL:
        free(t.out)
        t.out = NULL
        t.out_capacity = 0
    return 0


cdef int keep(tls_t* t) noexcept nogil:
    """Copy unsent bytes out of the scratch."""
    cdef int64_t n = tls_unsent(t)
    cdef uint8_t* own = NULL
    if n > 0:
        own = <uint8_t*>malloc(n)
        if own != NULL:
            memcpy(own, t.out + t.out_at, n)
    t.out = own
    t.out_at = 0
    t.out_used = t.out_capacity = n if own != NULL else 0
    t.is_lent = 0
    return 0 if n == 0 or own != NULL else -ENOMEM


cdef int tls_send(tls_t* t, const uint8_t* data, int64_t n) noexcept nogil:
    """Encrypt up to PIECE_BYTES, and send what the socket takes. 0: the bytes are accepted, and `tls_unsent` of them
    are still to send; -EAGAIN: not accepted, as there are unsent bytes from before; or another -errno."""
    cdef int status = tls_flush(t)
    cdef int done
    if status < 0:
        return status
    if t.broken:
        return -EPROTO
    if t.scratch != NULL:
        t.out = t.scratch.sealed
        t.out_capacity = SEALED_BYTES
        t.is_lent = 1
    t.lib.ERR_clear_error()
    done = t.lib.SSL_write(t.ssl, data, <int>n)
    status = tls_flush(t) if done == n else -EPROTO
    if status == -EPROTO:
        t.broken = t.ended = 1
    if t.is_lent and keep(t) < 0:
        return -ENOMEM
    return 0 if status == -EAGAIN else status
