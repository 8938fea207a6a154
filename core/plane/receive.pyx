"""A connection's input: read into the arena or its own buffer, cut into frames, executed in their order.

Frames are executed where they were read; the bytes of a Produce stay there until the turn's appends are drained. What
is not a whole frame, or may not be executed yet, moves to the connection, whose buffer grows with the bytes that come.
A large frame is read straight into that buffer, which is kept for the next one until the connection rests.
"""

from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from pybroker.core.base.atomic cimport load_i32, load_i64
from pybroker.core.base.chain cimport chain_append, chain_take
from pybroker.core.base.clock cimport wall_ms
from pybroker.core.base.counters cimport api_t, histogram_add, tally
from pybroker.core.base.cursor cimport cursor_init, cursor_t, load_be16, load_be32, store_be32
from pybroker.core.plane.conn cimport (
    AWAY, OPEN, OWN_KEPT, conn_add_slot, conn_close_slot, conn_forget_own, conn_free_own, conn_grow_own, conn_hold,
    conn_keep, conn_open_slot, conn_peek, conn_position, conn_recv, conn_repay, conn_short, conn_t, operation_t,
    output_t,
)
from pybroker.core.plane.disconnect cimport close_conn
from pybroker.core.plane.fetch cimport fetch
from pybroker.core.plane.mailbox cimport GONE, REQUEST, mailbox_put
from pybroker.core.plane.memory_pool cimport pool_full
from pybroker.core.plane.memory_shortage cimport wait_in_line
from pybroker.core.plane.mute cimport charge, charge_from, mute_look, mute_throttled
from pybroker.core.plane.operation cimport (
    operation_answered, operation_end, operation_keep_frame, operation_leave_session, operation_list, operation_unwatch,
)
from pybroker.core.plane.produce cimport (
    DECLINED, DONE, REFUSED, WAITS, produce, produce_drain, produce_is_settled, produce_tell_errors, turn_share,
    turn_spent,
)
from pybroker.core.plane.quotas cimport quotas_free, quotas_know
from pybroker.core.plane.reactor cimport ARENA_BYTES, FRAME_BYTES_MIN, READ_BYTES, make_ready, reactor_t
from pybroker.core.plane.timer cimport timer_set, timer_stop

cdef enum:
    API_PRODUCE = 0
    API_FETCH = 1
    ARENA_LEAST = 64 << 10       # less room than this, and the turn is drained to begin at the arena's start
    OUTPUT_BUDGET = 1 << 20      # a connection with more to send is not read
    READS_MAX = 8                # of one connection in one turn
    NO_MEMORY = -100000          # for what was read
    OPERATIONS_MAX = 256         # a connection with more that wait is not read
    TLS_HANDSHAKE = 0x16         # what a client of TLS begins with, and then the version
    TLS_MAJOR = 3
    NO_ROOM = 100                # a verdict: not now; the mailbox is full, or it is a Fetch behind one that waits


cdef const char* BAD_FRAME = "a frame of a size that is not allowed"
cdef const char* TLS_FRAME = "it speaks TLS, which this listener does not"
cdef const char* NO_ANSWER = "no memory for an answer"


cdef void drain(reactor_t* r) noexcept nogil:
    """Append what was gathered; from here on the bytes it came in may be reused."""
    produce_drain(&r.turn, wall_ms())


cdef int hand_over(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Give a request to Python; 0 or -errno."""
    cdef int status = mailbox_put(&r.plane.mailbox, REQUEST, c.id, c, frame, n)
    if status < 0:
        return status
    c.away_bytes = n             # until its answer comes
    conn_hold(c, n)
    c.state = AWAY
    if c.ended:
        mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
    return 0


cdef int decline(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Give a request to Python: as it came, or as what declined it says it. 0 or -errno."""
    cdef uint8_t* instead = r.fetch.instead
    cdef int status
    r.fetch.instead = NULL
    if instead == NULL:
        return hand_over(r, c, frame, n)
    status = hand_over(r, c, instead, r.fetch.instead_bytes)
    free(instead)
    return status


cdef void book(reactor_t* r, api_t* a, int verdict, int64_t began_ns, int64_t came, int64_t went) noexcept nogil:
    """Count a request that was looked at: its API (NULL: none of ours), what became of it, since when it waited (0: it
    did not), its bytes and its answer's."""
    if verdict == WAITS:
        return
    if a == NULL:
        tally(&r.others, 1)
    elif verdict == DECLINED:
        tally(&a.declined, 1)
    elif verdict == DONE:
        tally(&a.requests, 1)
        tally(&a.bytes_in, came)
        tally(&a.bytes_out, went)
        if began_ns == 0:
            a.in_turn += 1
        else:
            histogram_add(&a.times, (r.began_ns - began_ns) // 1000, 1)


# -- a Fetch that waits ------------------------------------------------------------------------------------------------

cdef int await_records(reactor_t* r, operation_t* op, const uint8_t* frame, int64_t n) noexcept nogil:
    """Keep a place for a Fetch's answer among those of its connection, and its request to be executed again; DONE, or
    REFUSED without memory."""
    cdef conn_t* c = op.conn
    if op.slot == NULL:
        op.began_ns = r.began_ns
        op.slot = conn_add_slot(c)
        if op.slot == NULL or operation_keep_frame(op, frame, n) < 0:
            return REFUSED
        op.wait_at = r.fetch.request.wait_at - frame
        op.wait_ms = r.fetch.request.max_wait_ms
        operation_list(op, conn_position(c))
        c.fetching = op
    if c.ended or c.close_after:
        op.deadline_ms = r.now_ms  # nothing waits for what its client does not
    return DONE if timer_set(&r.timers, op) == 0 else REFUSED


cdef const char* hand_over_fetch(reactor_t* r, operation_t* op) noexcept nogil:
    """Give a Fetch that waited to Python, unless its connection has another request there; why it cannot, or NULL."""
    cdef conn_t* c = op.conn
    op.is_declined = 1
    if c.state != OPEN:
        return NULL              # `serve` asks again
    if hand_over(r, c, op.frame, op.frame_bytes) < 0:
        return NO_ANSWER
    c.away = op
    return NULL


cdef const char* decline_fetch(reactor_t* r, operation_t* op) noexcept nogil:
    """Python must look at a Fetch that waited, and lets it wait no longer than it would have here."""
    cdef uint8_t* instead = r.fetch.instead
    cdef int64_t left_ms = max(<int64_t>0, op.deadline_ms - r.now_ms)
    cdef int status = 0
    r.fetch.instead = NULL
    if instead != NULL:
        status = operation_keep_frame(op, instead, r.fetch.instead_bytes)
        free(instead)
    timer_stop(&r.timers, op)
    operation_unwatch(op)
    operation_leave_session(op)
    if status < 0:
        return NO_ANSWER
    store_be32(op.frame + op.wait_at, <int32_t>min(<int64_t>op.wait_ms, left_ms))
    return hand_over_fetch(r, op)


cdef const char* execute_again(reactor_t* r, operation_t* op) noexcept nogil:
    """A Fetch that waits was told something, or its deadline came. Why its connection must end, or NULL."""
    cdef conn_t* c = op.conn
    cdef cursor_t at
    cdef output_t behind
    cdef int64_t queued = c.queued_bytes
    cdef int verdict = DECLINED
    if op.is_declined:
        return NULL
    cursor_init(&at, op.frame + 4, op.frame_bytes - 4)
    r.fetch.instead = NULL
    if not load_i32(&r.plane.diverted):
        conn_open_slot(c, op.slot, &behind)
        verdict = fetch(&r.fetch, c, &op, &at, load_be16(op.frame + 2), r.now_ms)
        conn_close_slot(c, &behind)
    mute_throttled(r, c)
    book(r, &r.fetches, verdict, op.began_ns, op.frame_bytes, c.queued_bytes - queued)
    if verdict == DECLINED:
        return decline_fetch(r, op)
    if verdict == REFUSED or (verdict == WAITS and await_records(r, op, NULL, 0) != DONE):
        return NO_ANSWER
    if verdict == WAITS:
        return NULL
    operation_answered(op, c.queued_bytes - queued)
    operation_end(&r.timers, op)
    return NULL


cdef void complete_produce(reactor_t* r, operation_t* op) noexcept nogil:
    """The answer of a Produce may be sent, once nothing of it is waited for."""
    if produce_is_settled(op, r.now_ms):
        r.turn.errors += produce_tell_errors(op)
        operation_end(&r.timers, op)


cdef void resume_due(reactor_t* r) noexcept nogil:
    """Look at the operations that have news. Nothing is gathered in this turn yet."""
    cdef operation_t* op
    cdef conn_t* c
    cdef int64_t began_ns
    cdef const char* why
    while r.due.first != NULL:
        op = <operation_t*>chain_take(&r.due)
        c = op.conn
        if c == NULL:
            operation_end(&r.timers, op)
        elif op.slot == NULL:
            complete_produce(r, op)
            make_ready(r, c)
        else:
            began_ns = charge_from(c)
            why = execute_again(r, op)
            charge(r, c, began_ns)
            make_ready(r, c)
            if why != NULL:
                close_conn(r, c, why)


# -- frames ------------------------------------------------------------------------------------------------------------

cdef inline bint login_is_over(const reactor_t* r, const conn_t* c) noexcept nogil:
    """Python says what becomes of a client whose login has ended."""
    return c.login_ends_ms != 0 and r.now_ms >= c.login_ends_ms


cdef inline bint counts_known(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Is there no quota, or is it known where the client counts?"""
    cdef int64_t number = load_i64(&r.plane.quotas)
    if number != 0:
        return quotas_know(c.quotas, number, frame, n)
    if c.quotas != NULL:
        quotas_free(c.quotas)
        c.quotas = NULL
    return True


cdef int execute(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Execute one frame (without its size); a verdict."""
    cdef cursor_t at
    cdef int16_t api = -1, version = 0
    cdef int verdict = DECLINED
    cdef int64_t queued = c.queued_bytes
    cdef api_t* a = NULL
    cdef operation_t* op = NULL
    cdef bint again = False, known
    if n >= FRAME_BYTES_MIN:     # less is no request; Python says so
        api, version = load_be16(frame), load_be16(frame + 2)
        cursor_init(&at, frame + 4, n - 4)
    if load_i32(&r.plane.diverted) or login_is_over(r, c):
        api = -1
    if api == API_FETCH and c.fetching != NULL:
        c.behind = 1
        if c.fetching.is_replica:
            c.fetching.is_hurried = 1
            chain_append(&r.due, &c.fetching.due, c.fetching)
        return NO_ROOM
    known = counts_known(r, c, frame, n)
    if api == API_PRODUCE:
        a = &r.produces
    if api == API_PRODUCE and known:
        verdict = produce(&r.turn, r.plane.registry, c, &at, version)
        again = verdict == DECLINED and r.turn.count > 0  # perhaps only the turn was full
    if verdict == DECLINED:
        drain(r)                 # whoever looks at it next sees what came before
        if c.refused != NULL:
            return REFUSED       # it failed without an answer: nothing behind it is executed
    r.fetch.instead = NULL
    if again:
        cursor_init(&at, frame + 4, n - 4)
        verdict = produce(&r.turn, r.plane.registry, c, &at, version)
    elif api == API_FETCH:
        a = &r.fetches
        verdict = fetch(&r.fetch, c, &op, &at, version, r.now_ms)
    elif api != API_PRODUCE and load_i32(&r.plane.mailbox.requests) >= r.plane.requests_max:
        wait_in_line(r, c, 0)
        return NO_ROOM           # Produce and Fetch, which Python rarely gets, are not held up
    mute_throttled(r, c)
    book(r, a, verdict, 0, n, c.queued_bytes - queued)
    if verdict == WAITS:
        verdict = await_records(r, op, frame, n)
        if verdict == DONE:
            return DONE
    if op != NULL:
        operation_end(&r.timers, op)  # it need not wait after all, or cannot
    if verdict == DECLINED and decline(r, c, frame, n) < 0:
        return REFUSED
    return verdict


cdef inline bint may_execute(const conn_t* c) noexcept nogil:
    if c.muted_until_ms != 0:
        return False
    if c.refused != NULL or c.behind or c.queued_bytes >= OUTPUT_BUDGET or c.operations.count >= OPERATIONS_MAX:
        return False
    if c.chunk_held > 0 and pool_full(c.pool):
        return False             # it gets no more answers before it read those that it has
    return c.state == OPEN


cdef int64_t execute_all(reactor_t* r, conn_t* c, const uint8_t* data, int64_t n) noexcept nogil:
    """Execute the whole frames at the start of `data` while the connection may; the bytes used up."""
    cdef int64_t at = 0, length
    cdef int verdict
    while n - at >= 4 and may_execute(c):
        length = load_be32(data + at)
        if length < 0 or length > r.plane.frame_bytes_max:
            c.refused = TLS_FRAME if data[at] == TLS_HANDSHAKE and data[at + 1] == TLS_MAJOR else BAD_FRAME
            break
        if n - at - 4 < length:
            break
        if turn_spent(&r.turn):
            break
        verdict = execute(r, c, data + at + 4, length)
        if verdict == REFUSED and c.refused == NULL:
            c.refused = NO_ANSWER
        if c.refused != NULL:
            break
        if verdict == NO_ROOM:
            break                # its frame stays, to be executed later
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
    got = conn_recv(c, c.own + c.own_used, min(need, c.own_capacity) - c.own_used)
    if got > 0:
        c.own_used += got
    return got


cdef int64_t consume(reactor_t* r, conn_t* c, uint8_t* at, int64_t got, int64_t used) noexcept nogil:
    """Of `got` bytes that were only looked at, take what was executed out of the socket; as read_own."""
    if used > 0:
        return conn_recv(c, at, used)
    if not waits(c) and not c.behind:
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
    got = conn_peek(c, at, room) if short else conn_recv(c, at, room)
    if got <= 0:
        return got
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
    cdef int64_t got, began_ns = charge_from(c), begin = conn_position(c)
    cdef int reads = 0
    if c.fetching != NULL and c.fetching.is_declined:
        why = hand_over_fetch(r, c.fetching)
        if why != NULL:
            return why
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
        if why != NULL or waits(c) or (c.tls != NULL and c.tls.is_spent):
            break
    mute_look(c)
    if began_ns != 0:
        drain(r)                 # its appends are in its time
        charge(r, c, began_ns if conn_position(c) != begin else 0)
    return why


cdef bint has_work(const conn_t* c) noexcept nogil:
    """Is there something to read or to execute, and may it be done now?"""
    if c.state != OPEN or waits(c) or not may_execute(c):
        return False
    return (c.readable and not c.close_after) or (c.own_used >= 4 and c.own_used - 4 >= <int64_t>load_be32(c.own))
