"""A reactor's inbox: new connections, answers from Python, and news for connections that wait.

Any thread leaves something under the inbox's lock and rings the bell once; the reactor takes all of it in its next turn.
"""

from libc.stdlib cimport free
from libc.string cimport memset

from pybroker.core.atomic cimport store_i32
from pybroker.core.chain cimport chain_append, chain_take
from pybroker.core.conn cimport CLOSING, OPEN, PARKED, conn_adopt_chunks, conn_free_own, conn_hold, conn_t
from pybroker.core.ending cimport close_conn
from pybroker.core.epoll cimport EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll_ctl, epoll_event
from pybroker.core.mailbox cimport ring
from pybroker.core.partition cimport watch_t
from pybroker.core.produce cimport produce_refuse
from pybroker.core.quiesce cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.reactor cimport make_ready, note_t, reactor_t
from pybroker.core.syncer cimport sync_free, sync_t


cdef void wake(reactor_t* r) noexcept nogil:
    """End the reactor's wait. Under the inbox's lock."""
    if not r.rung:
        r.rung = 1
        ring(r.bell)


cdef void reactor_leave(reactor_t* r, note_t* n) noexcept nogil:
    """Leave a note for a reactor; from any thread."""
    n.next = NULL
    pthread_mutex_lock(&r.lock)
    if r.notes_last != NULL:
        r.notes_last.next = n
    else:
        r.notes = n
    r.notes_last = n
    wake(r)
    pthread_mutex_unlock(&r.lock)


cdef void reactor_wake(reactor_t* r) noexcept nogil:
    """End the reactor's wait, so that it looks at what the plane says; from any thread."""
    pthread_mutex_lock(&r.lock)
    wake(r)
    pthread_mutex_unlock(&r.lock)


cdef void synced(sync_t* s) noexcept nogil:
    """An answer need wait for the disk no longer, or in vain. From the syncer's thread."""
    cdef reactor_t* r = <reactor_t*>(<conn_t*>s.owner).reactor
    pthread_mutex_lock(&r.lock)
    s.next = r.synced
    r.synced = s
    wake(r)
    pthread_mutex_unlock(&r.lock)


cdef void warmed(void* owner) noexcept nogil:
    """What a parked fetch asked for is in the page cache. From a reader's thread."""
    cdef conn_t* c = <conn_t*>owner
    cdef reactor_t* r = <reactor_t*>c.reactor
    pthread_mutex_lock(&r.lock)
    c.next_warmed = r.warmed
    r.warmed = c
    wake(r)
    pthread_mutex_unlock(&r.lock)


cdef void told(watch_t* w) noexcept nogil:
    """A partition that a parked connection watches grew, or went. From any thread, under the partition's watch mutex."""
    cdef conn_t* c = <conn_t*>w.owner
    cdef reactor_t* r = <reactor_t*>c.reactor
    pthread_mutex_lock(&r.lock)
    if chain_append(&r.woken, &c.woken, c):
        wake(r)
    pthread_mutex_unlock(&r.lock)


cdef void take_inbox(reactor_t* r) noexcept nogil:
    cdef note_t* n
    cdef note_t* after
    cdef conn_t* c
    cdef sync_t* s
    cdef sync_t* next_synced
    cdef conn_t* w
    pthread_mutex_lock(&r.lock)
    n = r.notes
    r.notes = r.notes_last = NULL
    s = r.synced
    r.synced = NULL
    w = r.warmed
    r.warmed = NULL
    r.rung = 0
    while r.woken.first != NULL:
        c = <conn_t*>chain_take(&r.woken)
        if c.state == PARKED:
            make_ready(r, c)
    pthread_mutex_unlock(&r.lock)
    while w != NULL:
        w.reading -= 1
        w.warmed = w.state == PARKED
        make_ready(r, w)
        w = w.next_warmed
    while s != NULL:
        next_synced = s.next
        take_synced(r, s)
        s = next_synced
    while n != NULL:
        after = n.next
        take_note(r, n)
        free(n)
        n = after


cdef void take_synced(reactor_t* r, sync_t* s) noexcept nogil:
    """An answer need wait for the disk no longer; once none of a connection's does, they are sent and it goes on."""
    cdef conn_t* c = <conn_t*>s.owner
    if s.status != 0:
        produce_refuse(s)
        r.turn.errors += 1
    sync_free(s)
    c.syncing -= 1
    if c.syncing == 0:
        make_ready(r, c)


cdef void take_note(reactor_t* r, note_t* n) noexcept nogil:
    cdef conn_t* c = n.conn
    cdef epoll_event e
    if n.is_new:
        memset(&e, 0, sizeof(e))
        e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
        e.data.ptr = c
        c.active_ms = r.now_ms
        chain_append(&r.listed, &c.listed, c)
        store_i32(&r.connections, r.connections + 1)
        if epoll_ctl(r.poll, EPOLL_CTL_ADD, c.fd, &e) != 0:
            close_conn(r, c, "it cannot be watched")
        return
    conn_hold(c, -c.away_bytes)
    c.away_bytes = 0
    if n.first != NULL:
        conn_adopt_chunks(c, n.first, n.last, n.bytes)
    c.state = OPEN
    if n.close:
        c.close_after = 1
        conn_free_own(c)         # what came behind the request that ends it is not executed
    if c.fd < 0:
        c.state = CLOSING        # its peer went meanwhile
    make_ready(r, c)
