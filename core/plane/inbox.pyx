"""A reactor's inbox: new connections, answers from Python, and news for connections that wait.

Any thread leaves something under the inbox's lock and rings the bell once; the reactor takes all of it in its next
turn.
"""

from libc.stdlib cimport free
from libc.string cimport memset

from pybroker.core.base.atomic cimport store_i32
from pybroker.core.base.chain cimport chain_append, chain_take
from pybroker.core.base.epoll cimport EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLL_CTL_ADD, epoll_ctl, epoll_event
from pybroker.core.base.reclamation cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport watch_t
from pybroker.core.plane.conn cimport (
    CLOSING, OPEN, PARKED, conn_adopt_chunks, conn_free_own, conn_hold, conn_t, inbox_t, note_t,
)
from pybroker.core.plane.disconnect cimport close_conn
from pybroker.core.plane.mailbox cimport ring
from pybroker.core.plane.produce cimport produce_refuse
from pybroker.core.plane.reactor cimport make_ready, reactor_t
from pybroker.core.storage.group_commit cimport sync_free, sync_t


cdef void wake(inbox_t* box) noexcept nogil:
    """End the reactor's wait. Under the inbox's lock."""
    if not box.rung:
        box.rung = 1
        ring(box.bell)


cdef void inbox_leave(inbox_t* box, note_t* n) noexcept nogil:
    """Leave a note; from any thread."""
    n.next = NULL
    pthread_mutex_lock(&box.lock)
    if box.notes_last != NULL:
        box.notes_last.next = n
    else:
        box.notes = n
    box.notes_last = n
    wake(box)
    pthread_mutex_unlock(&box.lock)


cdef void inbox_ring(inbox_t* box) noexcept nogil:
    """End the reactor's wait, so that it looks at what the plane says; from any thread."""
    pthread_mutex_lock(&box.lock)
    wake(box)
    pthread_mutex_unlock(&box.lock)


cdef void synced(sync_t* s) noexcept nogil:
    """An answer need wait for the disk no longer, or in vain. From the syncer's thread."""
    cdef inbox_t* box = (<conn_t*>s.owner).inbox
    pthread_mutex_lock(&box.lock)
    s.next = box.synced
    box.synced = s
    wake(box)
    pthread_mutex_unlock(&box.lock)


cdef void warmed(void* owner) noexcept nogil:
    """What a parked fetch asked for is in the page cache. From a reader's thread."""
    cdef conn_t* c = <conn_t*>owner
    cdef inbox_t* box = c.inbox
    pthread_mutex_lock(&box.lock)
    c.next_warmed = box.warmed
    box.warmed = c
    wake(box)
    pthread_mutex_unlock(&box.lock)


cdef void told(watch_t* w) noexcept nogil:
    """A partition that a parked connection watches grew, or went. From any thread, under the partition's watch
    mutex."""
    cdef conn_t* c = <conn_t*>w.owner
    cdef inbox_t* box = c.inbox
    pthread_mutex_lock(&box.lock)
    if chain_append(&box.woken, &c.woken, c):
        wake(box)
    pthread_mutex_unlock(&box.lock)


cdef void take_inbox(reactor_t* r) noexcept nogil:
    cdef note_t* n
    cdef note_t* after
    cdef conn_t* c
    cdef sync_t* s
    cdef sync_t* next_synced
    cdef conn_t* w
    pthread_mutex_lock(&r.inbox.lock)
    n = r.inbox.notes
    r.inbox.notes = r.inbox.notes_last = NULL
    s = r.inbox.synced
    r.inbox.synced = NULL
    w = r.inbox.warmed
    r.inbox.warmed = NULL
    r.inbox.rung = 0
    while r.inbox.woken.first != NULL:
        c = <conn_t*>chain_take(&r.inbox.woken)
        if c.state == PARKED:
            make_ready(r, c)
    pthread_mutex_unlock(&r.inbox.lock)
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
