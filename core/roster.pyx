"""A reactor's connections: all of them, the one that was silent for longest first, and those with something to do."""

from pybroker.core.conn cimport conn_t
from pybroker.core.reactor cimport reactor_t


cdef void link_newest(reactor_t* r, conn_t* c) noexcept nogil:
    c.next = NULL
    c.previous = r.newest
    if r.newest != NULL:
        r.newest.next = c
    else:
        r.oldest = c
    r.newest = c


cdef void unlink_conn(reactor_t* r, conn_t* c) noexcept nogil:
    if c.previous != NULL:
        c.previous.next = c.next
    else:
        r.oldest = c.next
    if c.next != NULL:
        c.next.previous = c.previous
    else:
        r.newest = c.previous


cdef void make_ready(reactor_t* r, conn_t* c) noexcept nogil:
    """The connection has something to do in this turn."""
    if c.is_ready:
        return
    c.is_ready = 1
    c.next_ready = NULL
    if r.ready_last != NULL:
        r.ready_last.next_ready = c
    else:
        r.ready = c
    r.ready_last = c


cdef void unready(reactor_t* r, conn_t* c) noexcept nogil:
    """Take a connection out of the list for the next turn, if it got there."""
    cdef conn_t** link = &r.ready
    cdef conn_t* last = NULL
    while link[0] != NULL:
        if link[0] == c:
            link[0] = c.next_ready
            continue
        last = link[0]
        link = &link[0].next_ready
    r.ready_last = last
