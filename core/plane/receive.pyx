"""A connection's input: read into the arena or its own buffer, cut into frames, executed in their order.

Frames are executed where they were read; the bytes of a Produce stay there until the turn's appends are drained. What
is not a whole frame, or may not be executed yet, moves to the connection, whose buffer grows with the bytes that come.
A large frame is read straight into that buffer, which is kept for the next one until the connection rests.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.stdlib cimport free

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.clock cimport wall_ms
from pybroker.core.base.counters cimport api_t, histogram_add, tally
from pybroker.core.base.cursor cimport cursor_init, cursor_t, load_be16, load_be32
from pybroker.core.plane.conn cimport (
    AWAY, OPEN, OWN_KEPT, PARKED, conn_forget_own, conn_free_own, conn_grow_own, conn_hold, conn_keep,
    conn_leave_session, conn_repay, conn_short, conn_t, conn_unwatch,
)
from pybroker.core.plane.fetch cimport fetch
from pybroker.core.plane.mailbox cimport GONE, REQUEST, mailbox_put
from pybroker.core.plane.memory_pool cimport pool_full
from pybroker.core.plane.memory_shortage cimport wait_in_line
from pybroker.core.plane.produce cimport DECLINED, DONE, REFUSED, WAITS, produce, produce_drain, turn_share, turn_spent
from pybroker.core.plane.reactor cimport ARENA_BYTES, FRAME_BYTES_MIN, READ_BYTES, reactor_t
from pybroker.core.plane.timer cimport heap_add, heap_remove

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* into, size_t n, int flags)
    int MSG_PEEK

cdef enum:
    API_PRODUCE = 0
    API_FETCH = 1
    ARENA_LEAST = 64 << 10       # less room than this, and the turn is drained to begin at the arena's start
    OUTPUT_BUDGET = 1 << 20      # a connection with more to send is not read
    READS_MAX = 8                # of one connection in one turn
    NO_MEMORY = -100000          # for what was read
    NO_ROOM = 100                # a verdict: the mailbox is full


cdef const char* BAD_FRAME = "a frame of a size that is not allowed"


cdef void drain(reactor_t* r) noexcept nogil:
    """Append what was gathered; from here on the bytes it came in may be reused."""
    produce_drain(&r.turn, wall_ms())


cdef int hand_over(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Give a request to Python: as it came, or as what declined it says it."""
    cdef uint8_t* instead = r.fetch.instead
    cdef int status
    r.fetch.instead = NULL
    if instead != NULL:
        frame = instead
        n = r.fetch.instead_bytes
    status = mailbox_put(&r.plane.mailbox, REQUEST, c.id, c, frame, n)
    free(instead)
    if status == 0:
        c.away_bytes = n         # until its answer comes
        conn_hold(c, n)
    return status


cdef void book(reactor_t* r, conn_t* c, api_t* a, int verdict, int64_t came, int64_t went) noexcept nogil:
    """Count a request that was looked at: its API (NULL: none of ours), what became of it, its bytes and its
    answer's."""
    if verdict == WAITS:
        if c.parked_ns == 0:
            c.parked_ns = r.began_ns
        return
    if a == NULL:
        tally(&r.others, 1)
    elif verdict == DECLINED:
        tally(&a.declined, 1)
    elif verdict == DONE:
        tally(&a.requests, 1)
        tally(&a.bytes_in, came)
        tally(&a.bytes_out, went)
        if c.parked_ns == 0:
            a.in_turn += 1
        else:
            histogram_add(&a.times, (r.began_ns - c.parked_ns) // 1000, 1)
    c.parked_ns = 0


cdef int execute(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Execute one frame (without its size); a verdict."""
    cdef cursor_t at
    cdef int16_t api = -1, version = 0
    cdef int verdict = DECLINED
    cdef int64_t queued = c.queued_bytes
    cdef api_t* a = NULL
    cdef bint again = False
    if n >= FRAME_BYTES_MIN:     # less is no request; Python says so
        api, version = load_be16(frame), load_be16(frame + 2)
        cursor_init(&at, frame + 4, n - 4)
    if load_i32(&r.plane.diverted):
        api = -1
    if api == API_PRODUCE:
        a = &r.produces
        verdict = produce(&r.turn, r.plane.registry, c, &at, version)
        again = verdict == DECLINED and r.turn.count > 0  # perhaps only the turn was full
    if verdict == DECLINED:
        drain(r)                 # whoever looks at it next sees what came before
        if c.refused != NULL:
            return REFUSED       # it failed without an answer: nothing behind it is executed
    if again:
        cursor_init(&at, frame + 4, n - 4)
        verdict = produce(&r.turn, r.plane.registry, c, &at, version)
    elif api == API_FETCH:
        a = &r.fetches
        verdict = fetch(&r.fetch, c, &at, version, r.now_ms)
    elif api != API_PRODUCE and c.state == OPEN and load_i32(&r.plane.mailbox.requests) >= r.plane.requests_max:
        return NO_ROOM           # Produce and Fetch, which Python rarely gets, are not held up
    book(r, c, a, verdict, n, c.queued_bytes - queued)
    if c.state == PARKED and verdict != WAITS:
        heap_remove(r.heap, &r.heap_count, c)
        conn_unwatch(c)
        conn_leave_session(c)
        c.state = OPEN
    if verdict == WAITS:
        if c.ended:
            c.deadline_ms = r.now_ms
        heap_remove(r.heap, &r.heap_count, c)  # with another deadline, perhaps
        if heap_add(&r.heap, &r.heap_count, &r.heap_capacity, c) < 0:
            return REFUSED
        c.state = PARKED
    elif verdict == DECLINED:
        conn_unwatch(c)
        if hand_over(r, c, frame, n) < 0:
            return REFUSED
        if c.ended:
            mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
        c.state = AWAY
    return verdict


cdef inline bint may_execute(const conn_t* c) noexcept nogil:
    if c.refused != NULL or c.syncing or c.queued_bytes >= OUTPUT_BUDGET:
        return False
    if c.chunk_held > 0 and pool_full(c.pool):
        return False             # it gets no more answers before it read those that it has
    return c.state == OPEN or c.state == PARKED


cdef int64_t execute_all(reactor_t* r, conn_t* c, const uint8_t* data, int64_t n) noexcept nogil:
    """Execute the whole frames at the start of `data` while the connection may; the bytes used up."""
    cdef int64_t at = 0, length
    cdef int verdict
    while n - at >= 4 and may_execute(c):
        length = load_be32(data + at)
        if length < 0 or length > r.plane.frame_bytes_max:
            c.refused = BAD_FRAME
            break
        if n - at - 4 < length:
            break
        if turn_spent(&r.turn):
            break
        verdict = execute(r, c, data + at + 4, length)
        if verdict == REFUSED and c.refused == NULL:
            c.refused = "no memory for an answer"
        if c.refused != NULL:
            break
        if verdict == NO_ROOM:
            wait_in_line(r, c, 0)
        if verdict == WAITS or verdict == NO_ROOM:
            break                # its frame stays, to be executed again
        at += 4 + length
    if at > 0:
        conn_repay(c)
        c.mark_ms = 0
    return at


cdef void execute_own(reactor_t* r, conn_t* c) noexcept nogil:
    """Execute what the connection kept."""
    cdef int64_t used = execute_all(r, c, c.own, c.own_used)
    if used > 0 or c.refused != NULL:
        drain(r)                 # the orders point into the buffer that is about to move
    if c.refused != NULL:
        conn_free_own(c)         # what is behind the frame that ends it is not executed
    elif used > 0:
        conn_forget_own(c, used)


cdef inline bint waits(const conn_t* c) noexcept nogil:
    return c.waiting.chain != NULL


# -- reading -----------------------------------------------------------------------------------------------------------

cdef int64_t read_own(reactor_t* r, conn_t* c) noexcept nogil:
    """Read into the connection's own buffer: the rest of a frame that has begun. Bytes, 0 at the end, -errno."""
    cdef int64_t need = 4, got
    if c.own_used >= 4:
        need = 4 + <int64_t>load_be32(c.own)  # which is allowed: it was looked at for execution
    elif c.own_capacity >= OWN_KEPT:
        need = c.own_capacity
    if conn_short(c):
        wait_in_line(r, c, need - c.own_used)
        return -EAGAIN
    # What was announced is believed only as far as it came: the buffer doubles.
    if conn_grow_own(c, min(need, max(2 * c.own_used, <int64_t>OWN_KEPT))) < 0:
        return NO_MEMORY
    got = recv(c.fd, c.own + c.own_used, min(need, c.own_capacity) - c.own_used, 0)
    if got < 0:
        return -errno
    if got < min(need, c.own_capacity) - c.own_used:
        c.readable = c.ended     # its end is not told twice
    c.own_used += got
    return got


cdef int64_t consume(reactor_t* r, conn_t* c, uint8_t* at, int64_t got, int64_t used) noexcept nogil:
    """Of `got` bytes that were only looked at, take what was executed out of the socket; as read_own.

    The frame of a fetch that parked is kept, to be executed again."""
    cdef int64_t kept = 0
    if c.state == PARKED:
        kept = 4 + <int64_t>load_be32(at + used)
        if conn_keep(c, at + used, kept) < 0:
            return NO_MEMORY
    if used + kept > 0:
        return recv(c.fd, at, used + kept, 0)
    if not waits(c):
        wait_in_line(r, c, 4 + <int64_t>load_be32(at) if got >= 4 else <int64_t>OWN_KEPT)
    return -EAGAIN


cdef int64_t read_arena(reactor_t* r, conn_t* c) noexcept nogil:
    """Read into the arena and execute from there; what is left over moves to the connection. As read_own."""
    cdef int64_t room, got, used
    cdef uint8_t* at
    cdef bint short
    if ARENA_BYTES - r.arena_used < ARENA_LEAST:
        drain(r)
        r.arena_used = 0
    room = min(<int64_t>READ_BYTES, ARENA_BYTES - r.arena_used)
    at = r.arena + r.arena_used
    short = conn_short(c)
    got = recv(c.fd, at, room, MSG_PEEK if short else 0)
    if got <= 0:
        return -errno if got < 0 else 0
    if got < room and not short:
        c.readable = c.ended
    r.arena_used += got
    used = execute_all(r, c, at, got)
    if c.refused != NULL:
        return got               # nothing of it is kept
    if short:
        return consume(r, c, at, got, used)
    return NO_MEMORY if used < got and conn_keep(c, at + used, got - used) < 0 else got


cdef const char* fault(int64_t got) noexcept nogil:
    """Why a connection must end at once after a read; NULL: it goes on, empty: its peer broke it off."""
    if got > 0 or got == -EAGAIN or got == -EINTR:
        return NULL
    return "no memory for a request" if got == NO_MEMORY else ""


cdef int64_t take_input(reactor_t* r, conn_t* c) noexcept nogil:
    """Read from a connection once, and execute what came; as read_own."""
    cdef int64_t got
    if c.own_used > 0 or c.own_capacity >= OWN_KEPT:
        got = read_own(r, c)
        if got > 0:
            execute_own(r, c)
    else:
        got = read_arena(r, c)
    if got > 0:
        tally(&r.bytes_in, got)
        c.bytes_in += got
    elif got == -EAGAIN and not waits(c):
        c.readable = 0
    return got


cdef bint may_read(const conn_t* c) noexcept nogil:
    return c.state == OPEN and c.readable and not c.close_after and may_execute(c)


cdef const char* serve(reactor_t* r, conn_t* c) noexcept nogil:
    """One connection's share of a turn: execute what it kept, read a few times, execute that. As fault()."""
    cdef const char* why = NULL
    cdef int64_t got
    cdef int reads = 0
    turn_share(&r.turn)
    if c.own_used > 0:
        execute_own(r, c)
    while may_read(c) and reads < READS_MAX and not turn_spent(&r.turn):
        reads += 1
        got = take_input(r, c)
        if got == 0:
            c.close_after = 1    # the end: it still gets the answers that it is owed
            break
        why = fault(got)
        if why != NULL or waits(c):
            break
    return why


cdef bint has_work(const conn_t* c) noexcept nogil:
    """Is there something to read or to execute, and may it be done now?"""
    if c.state != OPEN or waits(c) or not may_execute(c):
        return False
    return (c.readable and not c.close_after) or (c.own_used >= 4 and c.own_used - 4 >= <int64_t>load_be32(c.own))
