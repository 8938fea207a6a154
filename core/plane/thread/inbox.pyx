"""A reactor's inbox: new connections, replies from Python, and notifications of waiting operations.

Any thread adds to it under the inbox's lock and rings the bell once; the reactor takes everything in its next turn.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from pybroker.core.base.atomic cimport add_i32, load_i32, store_i32
from pybroker.core.base.chain cimport chain_append, chain_take
from pybroker.core.base.counters cimport OF_PYTHON
from pybroker.core.base.epoll cimport EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLL_CTL_ADD, epoll_ctl, epoll_event
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.tls cimport tls_scratch_t
from pybroker.core.partition.partition cimport watch_t
from pybroker.core.plane.connection.conn cimport (
    CLOSING, OPEN, conn_adopt_chunks, conn_close_slot, conn_free_own, conn_hold, conn_open_slot, conn_t, inbox_t,
    behind_t, note_t,
)
from pybroker.core.plane.connection.disconnect cimport close_conn
from pybroker.core.plane.connection.mailbox cimport ring
from pybroker.core.plane.connection.operation cimport (
    away_of, operation_answered, operation_end, operation_look, operation_t, operation_tell,
)
from pybroker.core.plane.limits.mute cimport mute
from pybroker.core.plane.limits.quotas cimport quotas_free
from pybroker.core.plane.limits.rights cimport rights_take
from pybroker.core.plane.replica.replica_fetcher cimport fetched_t, replica_fetcher_flushed, replica_fetcher_t
from pybroker.core.plane.requests.fetch_session cimport waiter_t
from pybroker.core.plane.thread.reactor cimport make_ready, plane_t, reactor_t
from pybroker.core.storage.background.group_commit cimport sync_t


cdef enum:
    ASKED_MAX = 1000             # connections to close at a time


cdef void wake(inbox_t* box) noexcept nogil:
    """End the reactor's wait. Under the inbox's lock."""
    if not box.rung:
        box.rung = 1
        ring(box.bell)


cdef void inbox_leave(inbox_t* box, note_t* n) noexcept nogil:
    """Add a note; from any thread."""
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
    """End the reactor's wait, so that it checks the plane's instructions; from any thread."""
    pthread_mutex_lock(&box.lock)
    box.is_called = 1
    wake(box)
    pthread_mutex_unlock(&box.lock)


cdef inline int32_t left_of(reactor_t* r) noexcept nogil:
    """The number of its connections that are not about to be closed."""
    return load_i32(&r.connections) - load_i32(&r.too_many)


cdef int32_t ask_to_close(plane_t* plane, reactor_t** reactors, int n, int32_t count, int32_t spared) noexcept nogil:
    """Ask reactors to close `count` connections: each time the longest idle one of the reactor that has most; those of
    the listener `spared` stay. The number asked for, at most ASKED_MAX. From any thread."""
    cdef reactor_t* most
    cdef int32_t asked = 0
    cdef int i
    store_i32(&plane.spared, spared)
    while asked < min(count, <int32_t>ASKED_MAX):
        most = reactors[0]
        for i in range(1, n):
            if left_of(reactors[i]) > left_of(most):
                most = reactors[i]
        if left_of(most) <= 0:
            break
        add_i32(&most.too_many, 1)
        asked += 1
    for i in range(n):
        inbox_ring(&reactors[i].inbox)
    return asked


cdef void synced(sync_t* s) noexcept nogil:
    """Notify an operation that its log is on disk, or that the flush failed. From the syncer's thread, or the
    reactor's."""
    cdef operation_t* op = <operation_t*>s.owner
    pthread_mutex_lock(&op.inbox.lock)
    add_i32(&op.refs, -1)
    operation_tell(op)
    pthread_mutex_unlock(&op.inbox.lock)


cdef void warmed(void* owner) noexcept nogil:
    """Notify an operation that the records of its Fetch are in the page cache. From a reader's thread."""
    cdef operation_t* op = <operation_t*>owner
    pthread_mutex_lock(&op.inbox.lock)
    add_i32(&op.refs, -1)
    op.fetch.warmed = 1
    operation_tell(op)
    pthread_mutex_unlock(&op.inbox.lock)


cdef void told(watch_t* w) noexcept nogil:
    """Notify an operation that a partition it watches moved on, or was removed. From any thread, under the watch
    mutex."""
    operation_look(<operation_t*>w.owner)


cdef void news(waiter_t* w) noexcept nogil:
    """Notify an operation that the session of its Fetch has news. From any thread, under the session's news lock."""
    operation_look(<operation_t*>w.owner)


cdef void take_flushed(reactor_t* r) noexcept nogil:
    """Let fetchers of followers continue whose logs are on disk."""
    cdef fetched_t* q
    while True:
        pthread_mutex_lock(&r.inbox.lock)
        q = <fetched_t*>chain_take(&r.inbox.flushed)
        pthread_mutex_unlock(&r.inbox.lock)
        if q == NULL:
            return
        if q.fetcher.conn != NULL:
            make_ready(r, q.fetcher.conn)
        replica_fetcher_flushed(q)


cdef void take_operations(reactor_t* r) noexcept nogil:
    """Make notified operations due. Under the inbox's lock."""
    cdef operation_t* op
    while r.inbox.told.first != NULL:
        op = <operation_t*>chain_take(&r.inbox.told)
        if op.fetch.warmed:
            op.fetch.warmed = 0
            op.fetch.is_warm = 1
            op.fetch.reading = 0
        chain_append(&r.due, &op.due, op)


cdef void take_told(reactor_t* r) noexcept nogil:
    """Take only the operations at the end of a turn, as their connections need not be served for that. If there is
    anything else, the next turn begins at once. From here on the bell is rung again."""
    pthread_mutex_lock(&r.inbox.lock)
    take_operations(r)
    r.is_left = r.inbox.is_called or r.inbox.notes != NULL
    r.is_left |= r.inbox.fetchers.first != NULL or r.inbox.flushed.first != NULL
    r.inbox.rung = r.is_left
    pthread_mutex_unlock(&r.inbox.lock)


cdef void take_inbox(reactor_t* r) noexcept nogil:
    """Take everything. The reactor checks the inbox again before it waits; until then other threads need not ring."""
    cdef note_t* n
    cdef note_t* after
    cdef bint flushed
    pthread_mutex_lock(&r.inbox.lock)
    n = r.inbox.notes
    flushed = r.inbox.flushed.first != NULL
    r.inbox.notes = r.inbox.notes_last = NULL
    r.inbox.rung = 1
    r.inbox.is_called = 0
    take_operations(r)
    while r.inbox.fetchers.first != NULL:
        make_ready(r, (<replica_fetcher_t*>chain_take(&r.inbox.fetchers)).conn)
    pthread_mutex_unlock(&r.inbox.lock)
    if flushed:
        take_flushed(r)
    while n != NULL:
        after = n.next
        take_note(r, n)
        free(n.given)
        quotas_free(n.quotas)
        free(n)
        n = after


cdef void take_answer(conn_t* c, note_t* n) noexcept nogil:
    """Move a reply from Python into the output: to the end, or into the slot of the request that waited."""
    cdef behind_t behind
    c.output.unsent[<int>OF_PYTHON] += 1
    if c.requests.away == NULL:
        conn_adopt_chunks(c, n.first, n.last, n.bytes)
        return
    conn_open_slot(c, away_of(c).fetch.slot, &behind)
    conn_adopt_chunks(c, n.first, n.last, n.bytes)
    conn_close_slot(c, &behind)
    operation_answered(away_of(c), n.bytes)


cdef void begin_tls(reactor_t* r, conn_t* c) noexcept nogil:
    """Begin to use TLS after its handshake. Bytes may be decrypted already, which the socket does not report."""
    if r.scratch == NULL:
        r.scratch = <tls_scratch_t*>malloc(sizeof(tls_scratch_t))
    c.tls.scratch = r.scratch
    c.input.readable = 1
    if r.scratch == NULL:
        close_conn(r, c, "no memory for TLS")
    else:
        make_ready(r, c)


cdef void take_note(reactor_t* r, note_t* n) noexcept nogil:
    cdef conn_t* c = n.conn
    cdef epoll_event e
    if n.login_ends_ms >= 0:
        c.login.ends_ms = n.login_ends_ms
    if n.is_new:
        memset(&e, 0, sizeof(e))
        e.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
        e.data.ptr = c
        c.active_ms = r.now_ms
        chain_append(&r.listed, &c.listed, c)
        store_i32(&r.connections, r.connections + 1)
        if epoll_ctl(r.poll, EPOLL_CTL_ADD, c.fd, &e) != 0:
            close_conn(r, c, "epoll cannot watch its socket")
        elif c.tls != NULL:
            begin_tls(r, c)
        return
    if n.given != NULL and c.login.rights != NULL:
        rights_take(c.login.rights, n.given)
    if n.quotas != NULL:
        quotas_free(c.limits.quotas)
        c.limits.quotas = n.quotas
        n.quotas = NULL
    conn_hold(c, -c.requests.away_bytes)
    c.requests.away_bytes = 0
    if n.first != NULL:
        take_answer(c, n)
    if c.requests.away != NULL:
        operation_end(&r.timers, away_of(c))
    c.state = OPEN
    if n.mute_ms > 0:
        mute(r, c, n.mute_ms)
    if n.close:
        c.ending.close_after = 1
        c.ending.lingers = n.mute_ms > 0
        conn_free_own(c)         # bytes after the request that ends it are not executed
    if c.fd < 0:
        c.state = CLOSING        # the peer disconnected meanwhile
    make_ready(r, c)
