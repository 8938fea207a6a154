"""The end of a connection: by its peer, by what it sent, or by the broker.

Its descriptor is closed at once, and its operations are over. Its memory goes at the end of the turn, or once Python,
which has a request of it, has told the reactor.

A process that was forked from this one may hold the socket and the epoll instance, too. So close(2) alone ends nothing:
shutdown(2) tells the peer, and epoll is told to forget the connection before its memory goes (epoll(7), questions and
answers, 6).
"""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport strlen
from posix.unistd cimport close

from pybroker.core.base.atomic cimport add_i32, load_i32, store_i32
from pybroker.core.base.chain cimport chain_append, chain_remove, link_t
from pybroker.core.base.epoll cimport EPOLL_CTL_DEL, epoll_ctl, epoll_event
from pybroker.core.base.socket cimport SHUT_RDWR, shutdown
from pybroker.core.base.tls cimport tls_end
from pybroker.core.plane.conn cimport AWAY, CLOSING, conn_free, conn_t, operation_t
from pybroker.core.plane.mailbox cimport CLOSED, GONE, mailbox_put
from pybroker.core.plane.operation cimport operations_end
from pybroker.core.plane.reactor cimport make_ready, reactor_t
from pybroker.core.plane.replica_fetcher cimport replica_fetcher_end, replica_fetcher_t


cdef void hang_up(reactor_t* r, conn_t* c) noexcept nogil:
    """Its peer sees the end, epoll knows it no more, and its descriptor is closed, in this order: who else has it is
    asked for nothing."""
    cdef epoll_event e
    if c.fd >= 0:
        if c.tls != NULL:
            tls_end(c.tls)
        shutdown(c.fd, SHUT_RDWR)
        epoll_ctl(r.poll, EPOLL_CTL_DEL, c.fd, &e)
        close(c.fd)
        c.fd = -1


cdef void close_conn(reactor_t* r, conn_t* c, const char* reason) noexcept nogil:
    """End a connection; `reason` is NULL or empty if its peer did. It is freed at the end of the turn, or once Python
    answered."""
    if c.fd >= 0:
        hang_up(r, c)
        c.readable = c.writable = 0
        operations_end(&r.timers, c)
        mailbox_put(
            &r.plane.mailbox, CLOSED, c.id, NULL, <const uint8_t*>reason, strlen(reason) if reason != NULL else 0)
        if c.state == AWAY:
            mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
    if c.state != AWAY:
        c.state = CLOSING
        make_ready(r, c)


cdef void close_longest_silent(reactor_t* r) noexcept nogil:
    """There are too many connections: close as many clients' as was asked for, or as there are."""
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
    """Free a connection that nobody holds any more."""
    hang_up(r, c)
    operations_end(&r.timers, c)
    chain_remove(&c.listed)
    chain_remove(&c.ready)
    chain_remove(&c.large)
    chain_remove(&c.waiting)
    chain_remove(&c.muted)
    if c.fetcher != NULL:
        replica_fetcher_end(<replica_fetcher_t*>c.fetcher)
    store_i32(&r.connections, r.connections - 1)
    conn_free(c)


cdef void stop_waiting(reactor_t* r, conn_t* c) noexcept nogil:
    """A Fetch that waits is answered now, with what there is."""
    if c.fetching != NULL:
        c.fetching.deadline_ms = r.now_ms
        chain_append(&r.due, &c.fetching.due, c.fetching)


cdef void stop_acks(reactor_t* r, conn_t* c) noexcept nogil:
    """Each Produce that waits for replicas is answered now."""
    cdef link_t* link = c.operations.first
    cdef operation_t* op
    while link != NULL:
        op = <operation_t*>link.owner
        if op.slot == NULL and op.heap_index >= 0:
            op.deadline_ms = r.now_ms
            chain_append(&r.due, &op.due, op)
        link = link.next


cdef void end(reactor_t* r, conn_t* c) noexcept nogil:
    """The peer sends nothing more. What it sent is still executed and answered; nothing waits for it any longer."""
    c.ended = c.readable = 1     # until a read says 0
    stop_waiting(r, c)
    if c.state == AWAY:
        mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
