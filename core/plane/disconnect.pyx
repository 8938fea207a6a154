"""The end of a connection: by its peer, by what it sent, or by the broker.

Its descriptor is closed at once. Its memory goes at the end of the turn, or when whoever still knows it (Python with
its request, the syncer, a reader) has told the reactor.

A process that was forked from this one may hold the socket and the epoll instance, too. So close(2) alone ends nothing:
shutdown(2) tells the peer, and epoll is told to forget the connection before its memory goes (epoll(7), questions and
answers, 6).
"""

from libc.stdint cimport uint8_t
from libc.string cimport strlen
from posix.unistd cimport close

from pybroker.core.base.atomic cimport store_i32
from pybroker.core.base.chain cimport chain_remove
from pybroker.core.base.epoll cimport EPOLL_CTL_DEL, epoll_ctl, epoll_event
from pybroker.core.base.reclamation cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.plane.conn cimport AWAY, CLOSING, PARKED, conn_free, conn_t, conn_unwatch
from pybroker.core.plane.mailbox cimport CLOSED, GONE, mailbox_put
from pybroker.core.plane.reactor cimport make_ready, reactor_t
from pybroker.core.plane.timer cimport heap_remove

cdef extern from "<sys/socket.h>" nogil:
    int shutdown(int fd, int how)
    int SHUT_RDWR


cdef void hang_up(reactor_t* r, conn_t* c) noexcept nogil:
    """Its peer sees the end, epoll knows it no more, and its descriptor is closed, in this order: who else has it is
    asked for nothing."""
    cdef epoll_event e
    if c.fd >= 0:
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
        mailbox_put(
            &r.plane.mailbox, CLOSED, c.id, NULL, <const uint8_t*>reason, strlen(reason) if reason != NULL else 0)
        if c.state == AWAY:
            mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
    if c.state != AWAY:
        c.state = CLOSING
        make_ready(r, c)


cdef void forget(reactor_t* r, conn_t* c) noexcept nogil:
    """Free a connection that nobody holds any more."""
    hang_up(r, c)
    heap_remove(r.heap, &r.heap_count, c)
    conn_unwatch(c)              # from here on nobody wakes it
    pthread_mutex_lock(&r.inbox.lock)
    chain_remove(&c.woken)
    pthread_mutex_unlock(&r.inbox.lock)
    chain_remove(&c.listed)
    chain_remove(&c.ready)
    chain_remove(&c.waiting)
    store_i32(&r.connections, r.connections - 1)
    conn_free(c)


cdef void stop_waiting(reactor_t* r, conn_t* c) noexcept nogil:
    """A parked fetch is answered now, with what there is."""
    heap_remove(r.heap, &r.heap_count, c)
    c.deadline_ms = r.now_ms
    make_ready(r, c)


cdef void end(reactor_t* r, conn_t* c) noexcept nogil:
    """The peer sends nothing more. What it sent is still executed and answered; nothing waits for it any longer."""
    c.ended = c.readable = 1     # until a read says 0
    if c.state == PARKED:
        stop_waiting(r, c)
    elif c.state == AWAY:
        mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
