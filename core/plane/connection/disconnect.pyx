"""The end of a connection: by its peer, by a bad frame, or by the broker.

Its descriptor is closed at once, and its operations end. Its memory is freed at the end of the turn, or once Python has
replied to the request that it has of the connection.

A forked process may hold the socket and the epoll instance, too. So close(2) alone ends nothing: shutdown(2) notifies
the peer, and EPOLL_CTL_DEL comes before the memory is freed (epoll(7), questions and answers, 6).
"""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport strlen
from posix.unistd cimport close

from pybroker.core.base.atomic cimport add_i32, load_i32, store_i32
from pybroker.core.base.chain cimport chain_append, chain_remove, link_t
from pybroker.core.base.epoll cimport EPOLL_CTL_DEL, epoll_ctl, epoll_event
from pybroker.core.base.socket cimport SHUT_RDWR, shutdown
from pybroker.core.base.tls cimport tls_end
from pybroker.core.plane.connection.conn cimport AWAY, CLOSING, conn_free, conn_t
from pybroker.core.plane.connection.mailbox cimport CLOSED, GONE, mailbox_put
from pybroker.core.plane.connection.operation cimport fetching_of, operation_t, operations_end
from pybroker.core.plane.replica.replica_fetcher cimport replica_fetcher_end, replica_fetcher_t
from pybroker.core.plane.thread.reactor cimport make_ready, reactor_t
from pybroker.core.plane.thread.samples cimport samples_forget


cdef void hang_up(reactor_t* r, conn_t* c) noexcept nogil:
    """Shut down the socket, remove it from epoll, and close the descriptor, in this order: a forked process may hold
    it, too."""
    cdef epoll_event e
    if c.fd >= 0:
        if c.tls != NULL:
            tls_end(c.tls)
        shutdown(c.fd, SHUT_RDWR)
        epoll_ctl(r.poll, EPOLL_CTL_DEL, c.fd, &e)
        close(c.fd)
        c.fd = -1


cdef void close_conn(reactor_t* r, conn_t* c, const char* reason) noexcept nogil:
    """End a connection; `reason` is NULL or empty if its peer did. It is freed at the end of the turn, or after
    Python's reply."""
    if c.fd >= 0:
        hang_up(r, c)
        c.input.readable = c.output.writable = 0
        operations_end(&r.timers, c)
        mailbox_put(
            &r.plane.mailbox, CLOSED, c.id, NULL, <const uint8_t*>reason, strlen(reason) if reason != NULL else 0)
        if c.state == AWAY:
            mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
    if c.state != AWAY:
        c.state = CLOSING
        make_ready(r, c)


cdef void close_longest_silent(reactor_t* r) noexcept nogil:
    """Close as many client connections as were asked for because there are too many, the longest idle first."""
    cdef link_t* link = r.listed.first
    cdef int32_t asked = load_i32(&r.too_many)
    cdef int32_t left = asked
    cdef conn_t* c
    while link != NULL and left > 0:
        c = <conn_t*>link.owner
        link = link.next
        if c.fd >= 0 and c.fetcher == NULL and c.listener != load_i32(&r.plane.spared):
            close_conn(r, c, "max.connections is exceeded, and it was silent for longest")
            left -= 1
    add_i32(&r.too_many, -asked)


cdef void forget(reactor_t* r, conn_t* c) noexcept nogil:
    """Free a connection that has no users any more."""
    hang_up(r, c)
    operations_end(&r.timers, c)
    chain_remove(&c.listed)
    chain_remove(&c.ready)
    chain_remove(&c.large)
    chain_remove(&c.waiting)
    chain_remove(&c.muted)
    if r.samples.active > 0:
        samples_forget(&r.samples, c.id)
    if c.fetcher != NULL:
        replica_fetcher_end(<replica_fetcher_t*>c.fetcher)
    store_i32(&r.connections, r.connections - 1)
    conn_free(c)


cdef void stop_waiting(reactor_t* r, conn_t* c) noexcept nogil:
    """Answer a waiting Fetch now, with what there is."""
    if c.requests.fetching != NULL:
        fetching_of(c).timer.deadline_ms = r.now_ms
        chain_append(&r.due, &fetching_of(c).due, fetching_of(c))


cdef void stop_acks(reactor_t* r, conn_t* c) noexcept nogil:
    """Answer each Produce that waits for replicas now."""
    cdef link_t* link = c.requests.operations.first
    cdef operation_t* op
    while link != NULL:
        op = <operation_t*>link.owner
        if op.fetch.slot == NULL and op.timer.index >= 0:
            op.timer.deadline_ms = r.now_ms
            chain_append(&r.due, &op.due, op)
        link = link.next


cdef void end(reactor_t* r, conn_t* c) noexcept nogil:
    """Handle the end of the peer's requests: those received are still executed and answered, but a Fetch waits no
    longer."""
    c.input.ended = c.input.readable = 1  # until a read returns 0
    stop_waiting(r, c)
    if c.state == AWAY:
        mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
