"""The network thread: epoll, read, execute, append the turn's batches, answer. No GIL, no Python object.

    OPEN --a request for Python--> AWAY --its reply--> OPEN        any --disconnected, bad frame--> CLOSING

One turn: take the inbox; handle notified operations; read every readable socket and execute its frames in order;
append the batches of all connections, one call for a partition; handle the operations that waited for that; then send
the responses, small ones first. A connection that is AWAY executes nothing further, so no request overtakes another;
if only the response of a request waits, the connection goes on (operation.pyx). Sockets are edge-triggered: interest is
never changed.
The reactor is pinned for the length of its turn, and never while it waits.
"""

from libc.errno cimport ENOMEM, errno
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport close, usleep

from pybroker.core.base.atomic cimport load_i32, load_i64, poke_i64
from pybroker.core.base.chain cimport chain_append, chain_remove, chain_take, link_t
from pybroker.core.base.clock cimport monotonic_ms, monotonic_ns
from pybroker.core.base.counters cimport histogram_add, tally
from pybroker.core.base.epoll cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLL_CLOEXEC, EPOLL_CTL_ADD,
    epoll_create1, epoll_ctl, epoll_event, epoll_wait, eventfd,
)
from pybroker.core.base.pthread cimport pthread_mutex_destroy, pthread_mutex_init
from pybroker.core.base.reclamation cimport collect, pin, unpin
from pybroker.core.base.socket cimport SHUT_RDWR, shutdown
from pybroker.core.plane.connection.conn cimport (
    AWAY, CLOSING, FLUSH_BYTES_MAX, OPEN, conn_account, conn_flush, conn_free_own, conn_is_owed, conn_is_sent,
    conn_sendable, conn_t, conn_taken, note_t,
)
from pybroker.core.plane.connection.disconnect cimport (
    close_conn, close_longest_silent, end, forget, stop_acks, stop_waiting,
)
from pybroker.core.plane.connection.mailbox cimport unring
from pybroker.core.plane.connection.operation cimport fetching_of, operation_t
from pybroker.core.plane.connection.timer cimport timer_stop
from pybroker.core.plane.limits.memory_pool cimport pool_full
from pybroker.core.plane.limits.memory_shortage cimport LOOK_MS, move_line, relieve
from pybroker.core.plane.limits.mute cimport charge, charge_from, unmute_due
from pybroker.core.plane.limits.quotas cimport quotas_free
from pybroker.core.plane.replica.replica_fetch cimport replica_fetch_hangs, replica_fetch_serve, replica_fetch_silence
from pybroker.core.plane.requests.fetch cimport fetcher_free
from pybroker.core.plane.thread.inbox cimport news, synced, take_inbox, take_told, told, warmed
from pybroker.core.plane.thread.reactor cimport EVENTS_MAX, LISTENERS_MAX, heeded_t, make_ready, plane_t, reactor_t
from pybroker.core.plane.thread.receive cimport drain, has_work, resume_due, serve
from pybroker.core.plane.thread.stages cimport stages_sent, stages_turned, stages_unsent

cdef enum:
    SWEEP_MS = 1000
    TOLD_LOOK_US = 200           # between two checks of an inbox that is about to be freed
    FINISH_MS = 100              # between two checks whether peers read their responses
    LINE_MS = 5                  # between two checks whether connections in line may go on
    AWAKE_NS = 60000             # busy wait, if the wait before was no longer
    SMALL_BYTES = 64 << 10       # of output: it is not queued with larger output
    REST_TURNS = 200             # as short, after a busy wait in vain


# -- life --------------------------------------------------------------------------------------------------------------

cdef int reactor_new(plane_t* plane, reactor_t** out) noexcept nogil:
    """Create a reactor without connections; 0 or -errno."""
    cdef epoll_event e
    cdef int status
    cdef reactor_t* r = <reactor_t*>calloc(1, sizeof(reactor_t))
    if r == NULL:
        return -ENOMEM
    r.plane = plane
    r.fetch.registry = plane.registry
    r.fetch.sessions = &plane.sessions
    r.fetch.quotas = &plane.quotas
    r.fetch.bytes_max = plane.fetch_bytes_max
    r.fetch.replica_listener = plane.replica_listener
    r.fetch.rack_length = plane.rack_length
    r.fetch.rack = plane.rack
    r.fetch.throttle = plane.leader_throttle
    r.fetch.notify = told
    r.fetch.news = news
    r.fetch.warmed = warmed
    r.turn.synced = synced
    r.turn.leaders.known = r.fetch.request.leaders.known = &plane.nodes
    r.turn.told = told
    r.turn.timers = &r.timers
    pthread_mutex_init(&r.inbox.lock, NULL)
    r.poll = epoll_create1(EPOLL_CLOEXEC)
    r.inbox.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    memset(&e, 0, sizeof(e))
    e.events = EPOLLIN
    if r.poll < 0 or r.inbox.bell < 0 or epoll_ctl(r.poll, EPOLL_CTL_ADD, r.inbox.bell, &e) < 0:
        status = -errno
        reactor_free(r)
        return status
    r.now_ms = r.looks.swept_ms = monotonic_ms()
    out[0] = r
    return 0


cdef void reactor_hang_up(reactor_t* r) noexcept nogil:
    """Shut down its sockets. Its thread has ended, but Python may still reply, so the memory of connections stays."""
    cdef link_t* link
    cdef conn_t* c
    take_inbox(r)
    link = r.listed.first
    while link != NULL:
        c = <conn_t*>link.owner
        if c.fd >= 0:
            shutdown(c.fd, SHUT_RDWR)
        link = link.next


cdef void reactor_free(reactor_t* r) noexcept nogil:
    """Close all connections, and free it. Its thread has ended, and no thread leaves notes any more."""
    cdef note_t* n
    take_inbox(r)
    while r.listed.first != NULL:
        forget(r, <conn_t*>r.listed.first.owner)
    while r.inbox.operations > 0:
        usleep(TOLD_LOOK_US)     # the threads that work for them notify the inbox
        take_inbox(r)
        resume_due(r)
    while r.inbox.notes != NULL:
        n = r.inbox.notes
        r.inbox.notes = n.next
        free(n.given)
        quotas_free(n.quotas)
        free(n)
    close(r.poll)
    close(r.inbox.bell)
    pthread_mutex_destroy(&r.inbox.lock)
    fetcher_free(&r.fetch)
    free(r.timers.heap)
    free(r.scratch)
    free(r)


# -- the turn ----------------------------------------------------------------------------------------------------------

cdef void take_events(reactor_t* r, epoll_event* events, int n) noexcept nogil:
    cdef conn_t* c
    cdef int i
    for i in range(n):
        c = <conn_t*>events[i].data.ptr
        if c == NULL:
            unring(r.inbox.bell)
            continue
        if events[i].events & (EPOLLHUP | EPOLLERR):
            close_conn(r, c, "")
            continue
        if events[i].events & EPOLLRDHUP and not c.input.ended:
            end(r, c)
        if events[i].events & EPOLLIN:
            c.input.readable = 1
        if events[i].events & EPOLLOUT:
            c.output.writable = 1
        c.active_ms = r.now_ms
        if c.listed.next != NULL:
            chain_remove(&c.listed)
            chain_append(&r.listed, &c.listed, c)
        make_ready(r, c)


cdef void take_deadlines(reactor_t* r) noexcept nogil:
    cdef operation_t* op
    while r.timers.count > 0 and r.timers.heap[0].deadline_ms <= r.now_ms:
        op = <operation_t*>r.timers.heap[0].owner
        timer_stop(&r.timers, &op.timer)
        chain_append(&r.due, &op.due, op)


cdef bint is_over(const conn_t* c) noexcept nogil:
    return c.ending.refused != NULL or (c.ending.close_after and (c.input.ended or not c.ending.lingers))


cdef int64_t send_of(reactor_t* r, conn_t* c) noexcept nogil:
    """Send one turn's share of a connection's output, and close the connection if it ends with that; the bytes sent. A
    connection with more to do is ready again."""
    cdef int64_t began_ns = charge_from(c), before = c.output.sent, sent
    if c.state != CLOSING and c.fd >= 0 and conn_flush(c) < 0:
        close_conn(r, c, "")
    sent = c.output.sent - before
    charge(r, c, began_ns)
    stages_sent(r, c)
    conn_account(c)
    if c.state != CLOSING and is_over(c) and conn_is_sent(c) and c.state != AWAY:
        close_conn(r, c, c.ending.refused)  # all outstanding responses are sent
    if c.state == CLOSING:
        forget(r, c)
    elif has_work(c) or (c.output.writable and conn_sendable(c) > 0):
        make_ready(r, c)
    return sent


cdef void finish(reactor_t* r) noexcept nogil:
    """Send the turn's responses: first small ones, then large ones up to a turn's budget. So a small request waits for
    one piece of the large responses at most, however many clients read a log from its start. Connections beyond the
    budget stay in line, and cost a turn nothing."""
    cdef conn_t* c
    cdef int64_t sent = 0, of_large = 0
    cdef int32_t _i
    for _i in range(r.ready.count):
        c = <conn_t*>chain_take(&r.ready)
        if c.state != CLOSING and c.output.writable and conn_sendable(c) > SMALL_BYTES:
            chain_append(&r.large, &c.large, c)
            stages_unsent(r, c)
            conn_account(c)
            if has_work(c):
                make_ready(r, c)
        else:
            chain_remove(&c.large)
            sent += send_of(r, c)
    while r.large.first != NULL and of_large < FLUSH_BYTES_MAX:
        of_large += send_of(r, <conn_t*>chain_take(&r.large))
    tally(&r.books.bytes_out, sent + of_large)


cdef void wind_up(reactor_t* r, conn_t* c) noexcept nogil:
    """Read no more requests of a connection, answer waiting ones now, and close it after its responses are sent."""
    if c.ending.lingers or not c.ending.close_after:
        c.ending.lingers = 0
        c.ending.close_after = 1
        stop_waiting(r, c)
        stop_acks(r, c)
        make_ready(r, c)


cdef bint is_stalled(reactor_t* r, conn_t* c) noexcept nogil:
    """True if its peer has read nothing of its output for stall_ms. Waiting for a response does not count."""
    cdef int64_t taken
    if c.fd < 0 or c.fetcher != NULL or c.large.chain != NULL or not conn_is_owed(c):
        c.ending.taken_ms = 0
        return False
    taken = conn_taken(c)
    if c.ending.taken_ms == 0 or taken != c.ending.taken:
        c.ending.taken = taken
        c.ending.taken_ms = r.now_ms
    return r.now_ms - c.ending.taken_ms >= load_i64(&r.plane.stall_ms)


cdef void finish_all(reactor_t* r) noexcept nogil:
    """Wind up all connections, as the broker stops."""
    cdef link_t* link = r.listed.first
    cdef conn_t* c
    while link != NULL:
        c = <conn_t*>link.owner
        link = link.next
        wind_up(r, c)
        if is_stalled(r, c):
            close_conn(r, c, "the broker stops, and it did not read its answers")


cdef inline bint says_more(
    const heeded_t* h, bint diverted, int64_t cut, int64_t closed, int64_t closing) noexcept nogil:
    """True if the plane's instructions changed since the last turn."""
    return diverted != h.diverted or cut != h.cut or closed != h.closed or closing != h.closing


cdef inline bint came_by(const conn_t* c, int64_t listeners) noexcept nogil:
    return c.fetcher == NULL and 0 <= c.listener < LISTENERS_MAX and (listeners >> c.listener) & 1


cdef void heed(reactor_t* r, bint diverted, int64_t cut, int64_t closed, int64_t closing) noexcept nogil:
    """Apply the plane's new instructions to all connections: parked fetches go to Python, or old connections end."""
    cdef link_t* link = r.listed.first
    cdef conn_t* c
    while link != NULL:
        c = <conn_t*>link.owner
        if c.id <= cut or came_by(c, closed):
            close_conn(r, c, "")
        elif came_by(c, closing):
            wind_up(r, c)
        elif diverted and c.requests.fetching != NULL:
            chain_append(&r.due, &fetching_of(c).due, fetching_of(c))
        link = link.next
    r.heeded.diverted = diverted
    r.heeded.cut, r.heeded.closed, r.heeded.closing = cut, closed, closing


cdef inline bint is_idle(const conn_t* c) noexcept nogil:
    if c.fetcher != NULL or c.limits.muted_until_ms != 0:
        return False
    return c.state == OPEN and c.requests.operations.first == NULL


cdef void sweep(reactor_t* r) noexcept nogil:
    """Once a second: free large buffers of idle connections, and close connections that are idle for too long."""
    cdef link_t* link = r.listed.first
    cdef conn_t* c
    cdef const char* why
    while link != NULL:
        c = <conn_t*>link.owner
        if r.now_ms - c.active_ms < SWEEP_MS:
            break
        if c.input.used == 0 and c.input.own != NULL:
            conn_free_own(c)
        if r.plane.idle_ms >= 0 and r.now_ms - c.active_ms > r.plane.idle_ms and is_idle(c):
            close_conn(r, c, "")
        if c.fetcher != NULL and c.state == OPEN:
            why = replica_fetch_silence(c, r.now_ms)
            if why != NULL:
                close_conn(r, c, why)
            elif replica_fetch_hangs(r, c):
                make_ready(r, c)
        link = link.next
    collect(&r.plane.context.reclaim)


cdef int64_t patience(reactor_t* r, int64_t most_ms) noexcept nogil:
    """The ms that the wait may take."""
    if r.ready.first != NULL or r.large.first != NULL or r.is_left:
        return 0
    if r.waiting.first != NULL:
        most_ms = min(most_ms, <int64_t>LINE_MS)
    elif pool_full(&r.plane.pool):
        most_ms = min(most_ms, <int64_t>LOOK_MS)
    if r.due.first != NULL:
        return 0
    if load_i32(&r.plane.finishing) and r.listed.first != NULL:
        most_ms = min(most_ms, <int64_t>FINISH_MS)
    if r.timers.count > 0:
        most_ms = min(most_ms, max(<int64_t>0, r.timers.heap[0].deadline_ms - monotonic_ms()))
    if r.muted.first != NULL:
        most_ms = min(most_ms, max(<int64_t>0, r.looks.unmute_ms - monotonic_ms()))
    return min(most_ms, <int64_t>SWEEP_MS)


cdef int wait(reactor_t* r, epoll_event* events, int64_t most_ms) noexcept nogil:
    """Wait for events; how many. A thread that sleeps wakes later than a client answers. So while only one connection
    is active, and waits are short, the wait begins as a busy wait; with several, their requests gather while the thread
    sleeps. (sched_yield would put it further back in the queue of a core that it shares with the flusher.)"""
    cdef int n = 0
    cdef int64_t now_ns = r.pace.ended_ns
    if r.pace.brisk > 0 and most_ms > 0:
        while n == 0 and now_ns - r.pace.ended_ns < AWAKE_NS:
            n = epoll_wait(r.poll, events, EVENTS_MAX, 0)
            now_ns = monotonic_ns()
        if n == 0:
            r.pace.brisk = -REST_TURNS  # on the same core its client cannot answer meanwhile
    if n == 0:
        n = epoll_wait(r.poll, events, EVENTS_MAX, <int>most_ms)
        now_ns = monotonic_ns()
    r.pace.began_ns = now_ns
    return n


cdef void close_books(reactor_t* r, int64_t took_ns) noexcept nogil:
    """Count the turn, whose length is also the time of each request that was read and answered in it."""
    tally(&r.books.busy_ns, took_ns)
    histogram_add(&r.books.turns, took_ns // 1000, 1)
    histogram_add(&r.books.produces.times, took_ns // 1000, r.books.produces.in_turn)
    histogram_add(&r.books.fetches.times, took_ns // 1000, r.books.fetches.in_turn)
    r.books.produces.in_turn = r.books.fetches.in_turn = 0
    poke_i64(&r.books.produces.errors, r.turn.errors)
    poke_i64(&r.books.fetches.errors, r.fetch.errors)
    poke_i64(&r.books.parked, r.timers.fetches)


cdef inline int64_t talker(const conn_t* c) noexcept nogil:
    """The id of a client that may be the only active one; 0 for a leader, for which others wait."""
    return c.id if c.fetcher == NULL else 0


cdef void reactor_step(reactor_t* r, int64_t timeout_ms) noexcept nogil:
    """Run one turn, after waiting up to timeout_ms for something to do."""
    cdef epoll_event events[EVENTS_MAX]
    cdef link_t* link
    cdef conn_t* c
    cdef const char* why
    cdef int64_t only, cut, closed, closing
    cdef int alone, slot, n = wait(r, events, patience(r, timeout_ms))
    r.now_ms = r.turn.now_ms = r.pace.began_ns // 1000000
    slot = pin(&r.plane.context.reclaim)
    take_events(r, events, n if n > 0 else 0)
    cut = load_i64(&r.plane.cut)  # before the inbox: connections that came before the cut are in it
    closed, closing = load_i64(&r.plane.closed), load_i64(&r.plane.closing)
    take_inbox(r)
    take_deadlines(r)
    unmute_due(r)
    relieve(r)
    move_line(r)
    if load_i32(&r.plane.finishing):
        finish_all(r)
    if says_more(&r.heeded, load_i32(&r.plane.diverted), cut, closed, closing):
        heed(r, load_i32(&r.plane.diverted), cut, closed, closing)
    if load_i32(&r.too_many) > 0:
        close_longest_silent(r)
    resume_due(r)
    link = r.ready.first
    only = talker(<conn_t*>link.owner) if link != NULL and link.next == NULL else 0
    alone = only > 0 and only == r.pace.talker and r.pace.began_ns - r.pace.ended_ns <= AWAKE_NS
    r.pace.brisk = min(r.pace.brisk + alone, <int32_t>alone)
    r.pace.talker = only
    while link != NULL:
        c = <conn_t*>link.owner
        if c.state == OPEN:
            why = serve(r, c) if c.fetcher == NULL else replica_fetch_serve(r, c)
            if why != NULL:
                close_conn(r, c, why)
        link = link.next
    drain(r)
    r.arena_used = 0
    take_told(r)                 # their responses leave with this turn's
    resume_due(r)
    r.pace.ready_ns = monotonic_ns()
    finish(r)
    unpin(&r.plane.context.reclaim, slot)
    if r.now_ms - r.looks.swept_ms >= SWEEP_MS:
        r.looks.swept_ms = r.now_ms
        sweep(r)
    r.pace.ended_ns = monotonic_ns()
    close_books(r, r.pace.ended_ns - r.pace.began_ns)
    stages_turned(r, r.pace.ended_ns)


cdef void reactor_run(reactor_t* r) noexcept nogil:
    """Run turn after turn, until the plane stops: the thread's function."""
    while not load_i32(&r.plane.stopping):
        reactor_step(r, SWEEP_MS)
