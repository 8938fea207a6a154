"""One client's connection: its buffers, and sending responses.

Only the owning reactor touches a connection. Output is a list of chunks, in order: bytes, and ranges of log files that
are sent by sendfile without a copy. Input is read into the reactor's arena and executed there. An incomplete frame, or
one that may not be executed yet, moves into the connection's own buffer, which grows with the bytes received, not with
the announced size.
"""

from libc.errno cimport EAGAIN, EINTR, ENODATA, ENOMEM, EPIPE, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from pybroker.core.base.atomic cimport add_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.files cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, MREMAP_MAYMOVE, PROT_READ, PROT_WRITE, iovec, mmap, mremap, munmap,
)
from pybroker.core.base.socket cimport MSG_MORE, MSG_NOSIGNAL, MSG_PEEK, SIOCOUTQ, ioctl, msghdr, recv, sendmsg
from pybroker.core.base.tls cimport PIECE_BYTES, tls_flush, tls_free, tls_peek, tls_recv, tls_send, tls_unsent
from pybroker.core.base.vfs cimport P_SEGMENT_SEND, vfs_pread, vfs_sendfile
from pybroker.core.plane.limits.memory_pool cimport pool_leave
from pybroker.core.plane.limits.quotas cimport quotas_free
from pybroker.core.plane.limits.rights cimport rights_free
from pybroker.core.storage.log.log cimport found_t, log_drop, log_hold, log_lend, log_note_unread, log_t, log_take_back
from pybroker.core.storage.log.slow_disk cimport slow_note
from pybroker.core.storage.segment.open_files cimport files_drop

cdef enum:
    VECTORS_MAX = 32


cdef chunk_t* chunk_new(int64_t room) noexcept nogil:
    """An empty chunk with room for `room` bytes; NULL without memory."""
    cdef chunk_t* k = <chunk_t*>malloc(sizeof(chunk_t) + room)
    if k == NULL:
        return NULL
    k.next = NULL
    k.log = NULL
    k.used = k.sent = k.is_slot = 0
    k.capacity = <int32_t>room
    k.data = <uint8_t*>(k + 1)
    return k


cdef chunk_t* chunk_drop(chunk_t* k) noexcept nogil:
    """Free a chunk and release its file; the next chunk."""
    cdef chunk_t* after = k.next
    if k.log != NULL:
        files_drop(k.found.files)
        log_drop(k.log)
    free(k)
    return after


cdef chunk_t* add_chunk(conn_t* c, int64_t room) noexcept nogil:
    cdef chunk_t* k = chunk_new(room)
    if k == NULL:
        return NULL
    if c.output.last != NULL:
        c.output.last.next = k
    else:
        c.output.first = k
    c.output.last = k
    c.output.chunk_bytes += room
    return k


cdef uint8_t* conn_room(conn_t* c, int64_t n) noexcept nogil:
    """Return room for n bytes of output, in one piece that does not move; NULL without memory.

    After a range of a file the room is just n bytes: a response may have one range after the other."""
    cdef chunk_t* k = c.output.last
    if k == NULL or k.log != NULL or k.capacity - k.used < n:
        k = add_chunk(c, n if n > CHUNK_BYTES or (k != NULL and k.log != NULL) else CHUNK_BYTES)
        if k == NULL:
            return NULL
    return k.data + k.used


cdef void conn_wrote(conn_t* c, int64_t n) noexcept nogil:
    """Count n bytes of that room as output."""
    c.output.last.used += <int32_t>n
    c.output.queued += n


cdef int conn_add_file(conn_t* c, log_t* l, const found_t* found, int64_t generation) noexcept nogil:
    """Send a range of a file next. The chunk takes over the reference to the files."""
    cdef chunk_t* k = add_chunk(c, 0)
    if k == NULL:
        return -ENOMEM
    log_hold(l)
    k.log = l
    k.found = found[0]
    k.generation = generation
    c.output.queued += found.length
    return 0


cdef bint conn_copy_file(
    conn_t* c, log_t* l, const found_t* found, int64_t generation, uint8_t* to) noexcept nogil:
    """Read a short range of a file into the output, and release the files. False: they are still held, as the range is
    empty or the read failed; sending the range will report that."""
    cdef int64_t began_ns
    cdef size_t got = 0
    cdef int status
    if found.files == NULL or not log_lend(l, generation):
        return False
    began_ns = monotonic_ns()
    status = vfs_pread(l.context.fs, P_SEGMENT_SEND, found.files.fd, to, found.length, found.position, &got)
    slow_note(&l.slow_reads, began_ns)
    log_take_back(l)
    if status < 0 or <int64_t>got < found.length:
        log_note_unread(l, status if status < 0 else -ENODATA)
        return False
    add_i64(&l.traffic.replication_bytes_out if c.is_follower else &l.traffic.bytes_out, found.length)
    files_drop(found.files)
    return True


cdef void conn_adopt_chunks(conn_t* c, chunk_t* first, chunk_t* last, int64_t n) noexcept nogil:
    """Send a response of n bytes next, which was built elsewhere."""
    if c.output.last != NULL:
        c.output.last.next = first
    else:
        c.output.first = first
    c.output.last = last
    c.output.queued += n
    while first != NULL:
        c.output.chunk_bytes += first.capacity
        first = first.next


cdef chunk_t* conn_add_slot(conn_t* c) noexcept nogil:
    """Reserve the place of a waiting response in the output; NULL without memory."""
    cdef chunk_t* k = add_chunk(c, 0)
    if k != NULL:
        k.is_slot = 1
    return k


cdef void conn_open_slot(conn_t* c, chunk_t* slot, behind_t* behind) noexcept nogil:
    """Put output after a slot from now on. The chunks after it are `behind`, until the slot is closed."""
    behind.first = slot.next
    behind.last = c.output.last
    slot.next = NULL
    c.output.last = slot


cdef void conn_close_slot(conn_t* c, const behind_t* behind) noexcept nogil:
    if behind.first != NULL:
        c.output.last.next = behind.first
        c.output.last = behind.last


cdef void drop_first(conn_t* c) noexcept nogil:
    c.output.chunk_bytes -= c.output.first.capacity
    c.output.first = chunk_drop(c.output.first)
    if c.output.first == NULL:
        c.output.last = NULL


cdef inline void drop_empty(conn_t* c) noexcept nogil:
    """Drop empty chunks at the front: room after a range of a file into which nothing was written."""
    cdef const chunk_t* k = c.output.first
    while k != NULL and k.log == NULL and not k.is_slot and k.sent == k.used:
        drop_first(c)
        k = c.output.first


cdef ssize_t send_bytes(conn_t* c, int64_t most) noexcept nogil:
    """Send up to so many bytes of the chunks at the front in one call; the bytes sent, or -errno."""
    cdef iovec v[VECTORS_MAX]
    cdef msghdr m
    cdef chunk_t* k = c.output.first
    cdef size_t n = 0
    cdef ssize_t sent
    while k != NULL and k.log == NULL and not k.is_slot and n < VECTORS_MAX and most > 0:
        v[n].iov_base = k.data + k.sent
        v[n].iov_len = min(<int64_t>(k.used - k.sent), most)
        most -= v[n].iov_len
        n += 1
        k = k.next
    m.msg_iov = v
    m.msg_iovlen = n
    m.msg_name = NULL
    m.msg_namelen = 0
    m.msg_control = NULL
    m.msg_controllen = 0
    m.msg_flags = 0
    # A range of a file follows: let the kernel put its first bytes into the same packet.
    sent = sendmsg(c.fd, &m, MSG_NOSIGNAL | (MSG_MORE if k != NULL and k.log != NULL and most > 0 else 0))
    if sent < 0:
        return -errno
    c.output.queued -= sent
    k = c.output.first
    n = sent
    while k != NULL and k.log == NULL and not k.is_slot and n >= <size_t>(k.used - k.sent):
        n -= k.used - k.sent
        drop_first(c)
        k = c.output.first
    if k != NULL and k.log == NULL:
        k.sent += <int32_t>n
    return sent


cdef ssize_t send_file(conn_t* c, int64_t most) noexcept nogil:
    """Send from the range of a file at the front; the bytes sent, or -errno."""
    cdef chunk_t* k = c.output.first
    cdef int64_t n = min(k.found.length, most)
    cdef ssize_t sent
    cdef int64_t began_ns
    if not log_lend(k.log, k.generation):
        return -EPIPE  # truncated meanwhile: the bytes may not match the header any more
    began_ns = monotonic_ns()
    sent = vfs_sendfile(k.log.context.fs, P_SEGMENT_SEND, c.fd, k.found.files.fd, k.found.position, n)
    slow_note(&k.log.slow_reads, began_ns)
    log_take_back(k.log)
    if sent <= 0:
        return log_note_unread(k.log, <int>sent if sent < 0 else -ENODATA)
    add_i64(&k.log.traffic.replication_bytes_out if c.is_follower else &k.log.traffic.bytes_out, sent)
    c.output.queued -= sent
    k.found.position += sent
    k.found.length -= sent
    if k.found.length == 0:
        drop_first(c)
    return sent


cdef ssize_t copy_file(conn_t* c, uint8_t* to, int64_t n) noexcept nogil:
    """Take up to n bytes from the range of a file at the front; how many, or -errno."""
    cdef chunk_t* k = c.output.first
    cdef size_t got = 0
    cdef int status
    cdef int64_t began_ns
    if not log_lend(k.log, k.generation):
        return -EPIPE  # as in send_file
    began_ns = monotonic_ns()
    status = vfs_pread(
        k.log.context.fs, P_SEGMENT_SEND, k.found.files.fd, to, min(n, k.found.length), k.found.position, &got)
    slow_note(&k.log.slow_reads, began_ns)
    log_take_back(k.log)
    if status < 0 or got == 0:
        return log_note_unread(k.log, status if status < 0 else -ENODATA)
    add_i64(&k.log.traffic.replication_bytes_out if c.is_follower else &k.log.traffic.bytes_out, got)
    k.found.position += got
    k.found.length -= got
    if k.found.length == 0:
        drop_first(c)
    return got


cdef ssize_t gather(conn_t* c, uint8_t* to, int64_t most) noexcept nogil:
    """Take up to `most` bytes from the chunks at the front, in one piece; how many, or -errno."""
    cdef chunk_t* k = c.output.first
    cdef int64_t total = 0
    cdef ssize_t got = 0
    while k != NULL and not k.is_slot and total < most:
        if k.log != NULL:
            got = copy_file(c, to + total, most - total)
            if got < 0:
                break            # the next call meets the error, after the bytes before it are sent
        else:
            got = min(<int64_t>(k.used - k.sent), most - total)
            memcpy(to + total, k.data + k.sent, got)
            k.sent += <int32_t>got
            if k.sent == k.used:
                drop_first(c)
        total += got
        k = c.output.first
    c.output.queued -= total
    return total if total > 0 else got


cdef int flush_tls(conn_t* c) noexcept nogil:
    """Encrypt and send, as conn_flush. Encrypted bytes count as sent."""
    cdef int64_t total = 0
    cdef ssize_t n
    cdef int status = tls_flush(c.tls)
    drop_empty(c)
    while status == 0 and c.output.first != NULL and total < FLUSH_BYTES_MAX:
        n = gather(c, c.tls.scratch.plain, min(<int64_t>PIECE_BYTES, conn_sendable(c)))
        if n <= 0:
            return <int>n
        total += n
        c.output.sent += n
        drop_empty(c)
        status = tls_send(c.tls, c.tls.scratch.plain, n)
        if status == 0 and tls_unsent(c.tls) > 0:
            status = -EAGAIN
    if status != -EAGAIN:
        return status
    c.output.writable = 0
    return 0


cdef int conn_flush(conn_t* c) noexcept nogil:
    """Send what the socket takes. 0: all is sent, the socket is full, the turn's share is used up, or the rest waits;
    -errno: close."""
    cdef int64_t total = 0
    cdef ssize_t sent
    if c.tls != NULL:
        return flush_tls(c)
    drop_empty(c)
    while c.output.first != NULL and not c.output.first.is_slot and c.output.writable and total < FLUSH_BYTES_MAX:
        if conn_sendable(c) <= 0:
            break
        sent = send_bytes(c, conn_sendable(c)) if c.output.first.log == NULL else send_file(c, FLUSH_BYTES_MAX - total)
        if sent >= 0:
            total += sent
            c.output.sent += sent
            drop_empty(c)
        elif sent == -EAGAIN:
            c.output.writable = 0
        elif sent != -EINTR:
            return <int>sent
    return 0


cdef int64_t conn_taken(const conn_t* c) noexcept nogil:
    """The bytes that the peer has acknowledged since the connection was accepted."""
    cdef int waits = 0
    ioctl(c.fd, SIOCOUTQ, &waits)
    return c.output.sent - waits - (tls_unsent(c.tls) if c.tls != NULL else 0)


# -- receiving ---------------------------------------------------------------------------------------------------------

cdef ssize_t conn_recv(conn_t* c, uint8_t* into, int64_t n) noexcept nogil:
    """Receive up to n bytes; how many, 0 at the end, or -errno. Fewer than n: there are no more now."""
    cdef ssize_t got
    if c.tls != NULL:
        got = tls_recv(c.tls, into, n)
    else:
        got = recv(c.fd, into, n, 0)
        if got < 0:
            return -errno
    if 0 < got < n:
        # epoll reports neither the end again nor bytes that TLS left for another turn.
        c.input.readable = c.input.ended or (c.tls != NULL and (c.tls.ended or c.tls.is_spent))
    return got


cdef ssize_t conn_peek(conn_t* c, uint8_t* into, int64_t n) noexcept nogil:
    """Copy bytes that conn_recv would receive, perhaps not all; the same results."""
    cdef ssize_t got
    if c.tls != NULL:
        return tls_peek(c.tls, into, n)
    got = recv(c.fd, into, n, MSG_PEEK)
    return got if got >= 0 else -errno


# -- buffered input ----------------------------------------------------------------------------------------------------

cdef uint8_t* resize_own(conn_t* c, int64_t capacity) noexcept nogil:
    """Resize its buffer; NULL without memory. A large buffer is a mapping, which grows by pages and returns them to the
    system; on the heap, the large buffers of many connections would leave unusable holes."""
    cdef void* own
    if capacity <= OWN_KEPT:
        return <uint8_t*>realloc(c.input.own, capacity)
    if c.input.capacity > OWN_KEPT:
        own = mremap(c.input.own, c.input.capacity, capacity, MREMAP_MAYMOVE)
        return NULL if own == MAP_FAILED else <uint8_t*>own
    own = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if own == MAP_FAILED:
        return NULL
    if c.input.used > 0:
        memcpy(own, c.input.own, c.input.used)
    free(c.input.own)
    return <uint8_t*>own


cdef int conn_grow_own(conn_t* c, int64_t wanted) noexcept nogil:
    cdef uint8_t* own
    cdef int64_t capacity = c.input.capacity if c.input.capacity else OWN_BYTES_MIN
    if wanted <= c.input.capacity:
        return 0
    while capacity < wanted:
        capacity *= 2
    own = resize_own(c, capacity)
    if own == NULL:
        return -ENOMEM
    conn_hold(c, capacity - c.input.capacity)
    c.input.own = own
    c.input.capacity = capacity
    return 0


cdef void conn_free_own(conn_t* c) noexcept nogil:
    """Free the connection's own buffer."""
    if c.input.capacity > 0:
        conn_hold(c, -c.input.capacity)
    if c.input.capacity > OWN_KEPT:
        munmap(c.input.own, c.input.capacity)
    else:
        free(c.input.own)
    c.input.own = NULL
    c.input.capacity = c.input.used = 0


cdef int conn_keep(conn_t* c, const uint8_t* data, int64_t n) noexcept nogil:
    """Append bytes to the connection's own buffer."""
    if conn_grow_own(c, c.input.used + n) < 0:
        return -ENOMEM
    memcpy(c.input.own + c.input.used, data, n)
    c.input.used += n
    return 0


cdef void conn_forget_own(conn_t* c, int64_t n) noexcept nogil:
    """Drop the first n bytes, which were executed. An empty buffer is freed at once if it is small or memory is short.
    A large one serves the next frame of its size, and is freed when the connection is idle, as fresh pages cost more.
    """
    c.input.used -= n
    if c.input.used > 0:
        memmove(c.input.own, c.input.own + n, c.input.used)
    elif c.input.capacity < OWN_KEPT or conn_short(c):
        conn_free_own(c)


cdef void conn_empty(conn_t* c) noexcept nogil:
    """Free all memory of buffers: the input is not executed, the rest of the output is not sent."""
    while c.output.first != NULL:
        drop_first(c)
    c.output.queued = 0
    conn_account(c)
    conn_free_own(c)


cdef void conn_free(conn_t* c) noexcept nogil:
    """Free a connection whose descriptor is closed and whose operations have ended."""
    tls_free(c.tls)
    c.tls = NULL
    conn_empty(c)
    conn_repay(c)
    pool_leave(c.memory.pool, c.memory.address)
    rights_free(c.login.rights)
    quotas_free(c.limits.quotas)
    free(c)
