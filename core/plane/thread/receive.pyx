"""A connection's input: read into the arena or its own buffer, cut into frames, executed in order.

Frames are executed where they were read; the bytes of a Produce stay there until the turn's appends are drained. An
incomplete frame, or one that may not be executed yet, moves to the connection's own buffer, which grows with the bytes
received. A large frame is read straight into that buffer, which is kept for the next one until the connection is idle.
"""

from libc.errno cimport EAGAIN, EINTR, ENOMEM
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from pybroker.core.base.atomic cimport load_i32, load_i64
from pybroker.core.base.chain cimport chain_append, chain_take
from pybroker.core.base.clock cimport monotonic_ns, wall_ms
from pybroker.core.base.counters cimport api_t, histogram_add, tally
from pybroker.core.base.cursor cimport cursor_init, cursor_t, load_be16, load_be32, store_be32
from pybroker.core.base.frame cimport AT_API_KEY, AT_API_VERSION, AT_CORRELATION_ID, FRAME_BYTES_MIN, SIZE_BYTES
from pybroker.core.base.protocol cimport API_FETCH, API_PRODUCE
from pybroker.core.plane.connection.conn cimport (
    AWAY, OPEN, OWN_KEPT, conn_add_slot, conn_close_slot, conn_forget_own, conn_free_own, conn_grow_own, conn_hold,
    conn_keep, conn_open_slot, conn_peek, conn_position, conn_recv, conn_repay, conn_short, conn_t, behind_t,
)
from pybroker.core.plane.connection.disconnect cimport close_conn
from pybroker.core.plane.connection.mailbox cimport GONE, REQUEST, mailbox_put
from pybroker.core.plane.connection.operation cimport (
    fetching_of, operation_answered, operation_end, operation_keep_frame, operation_leave_session, operation_list,
    operation_t, operation_unwatch,
)
from pybroker.core.plane.connection.timer cimport timer_set, timer_stop
from pybroker.core.plane.limits.memory_pool cimport pool_full
from pybroker.core.plane.limits.memory_shortage cimport wait_in_line
from pybroker.core.plane.limits.mute cimport charge, charge_from, mute_look, mute_throttled
from pybroker.core.plane.limits.quotas cimport quotas_free, quotas_know
from pybroker.core.plane.requests.fetch cimport fetch
from pybroker.core.plane.requests.produce cimport (
    produce, produce_drain, produce_is_settled, produce_tell_errors, turn_share, turn_spent,
)
from pybroker.core.plane.requests.verdict cimport DECLINED, DONE, NO_ROOM, REFUSED, WAITS, verdict_t
from pybroker.core.plane.thread.reactor cimport ARENA_BYTES, READ_BYTES, make_ready, reactor_t
from pybroker.core.plane.thread.stages cimport stages_drained, stages_fetched, stages_gathered, stages_replicated

cdef enum:
    ARENA_LEAST = 64 << 10       # with less room the turn is drained, to reuse the arena from its start
    OUTPUT_BUDGET = 1 << 20      # a connection with more output is not read
    READS_MAX = 8                # of one connection in one turn
    OPERATIONS_MAX = 256         # a connection with more waiting operations is not read
    TLS_HANDSHAKE = 0x16         # the first byte of a TLS client; then the version
    TLS_MAJOR = 3


cdef const char* BAD_FRAME = "its frame has a size that is not allowed"
cdef const char* TLS_FRAME = "it speaks TLS, which this listener does not"
cdef const char* NO_ANSWER = "no memory for an answer"


cdef void drain(reactor_t* r) noexcept nogil:
    """Append the gathered batches; the memory that they are in may be reused afterwards."""
    if produce_drain(&r.turn, wall_ms()):
        stages_drained(r)


cdef int hand_over(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Give a request to Python; 0 or -errno."""
    cdef int status = mailbox_put(&r.plane.mailbox, REQUEST, c.id, c, frame, n)
    if status < 0:
        return status
    c.requests.away_bytes = n    # until its reply comes
    conn_hold(c, n)
    c.state = AWAY
    if c.input.ended:
        mailbox_put(&r.plane.mailbox, GONE, c.id, c, NULL, 0)
    return 0


cdef int decline(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Give a request to Python: unchanged, or as rewritten by the code that declined it. 0 or -errno."""
    cdef uint8_t* instead = r.fetch.instead
    cdef int status
    r.fetch.instead = NULL
    if instead == NULL:
        return hand_over(r, c, frame, n)
    status = hand_over(r, c, instead, r.fetch.instead_bytes)
    free(instead)
    return status


cdef void book(
    reactor_t* r, api_t* a, verdict_t verdict, int64_t began_ns, int64_t came, int64_t went) noexcept nogil:
    """Count a request that was handled: its API (NULL: another one), the verdict, when its wait began (0: it did not
    wait), and the bytes of request and response."""
    if verdict == WAITS:
        return
    if a == NULL:
        tally(&r.books.others, 1)
    elif verdict == DECLINED:
        tally(&a.declined, 1)
    elif verdict == DONE:
        tally(&a.requests, 1)
        tally(&a.bytes_in, came)
        tally(&a.bytes_out, went)
        if began_ns == 0:
            a.in_turn += 1
        else:
            histogram_add(&a.times, (r.pace.began_ns - began_ns) // 1000, 1)


# -- a Fetch that waits ------------------------------------------------------------------------------------------------

cdef verdict_t await_records(reactor_t* r, operation_t* op, const uint8_t* frame, int64_t n) noexcept nogil:
    """Reserve the place of a Fetch's response in its connection's output, and keep the request to execute it again;
    DONE, or REFUSED without memory."""
    cdef conn_t* c = op.conn
    if op.fetch.slot == NULL:
        op.fetch.began_ns = r.pace.began_ns
        op.timer.is_fetch = 1
        op.fetch.slot = conn_add_slot(c)
        if op.fetch.slot == NULL or operation_keep_frame(op, frame, n) < 0:
            return REFUSED
        op.fetch.wait_at = r.fetch.request.wait_at - frame
        op.fetch.wait_ms = r.fetch.request.max_wait_ms
        operation_list(op, conn_position(c))
        c.requests.fetching = op
    if c.input.ended or c.ending.close_after:
        op.timer.deadline_ms = r.now_ms  # no wait: the client sends nothing more
    return DONE if timer_set(&r.timers, &op.timer) == 0 else REFUSED


cdef const char* hand_over_fetch(reactor_t* r, operation_t* op) noexcept nogil:
    """Give a waiting Fetch to Python, unless Python has another request of its connection; the reason of a failure, or
    NULL."""
    cdef conn_t* c = op.conn
    op.fetch.is_declined = 1
    if c.state != OPEN:
        return NULL              # `serve` tries again
    if hand_over(r, c, op.fetch.frame, op.fetch.frame_bytes) < 0:
        return NO_ANSWER
    c.requests.away = op
    return NULL


cdef const char* decline_fetch(reactor_t* r, operation_t* op) noexcept nogil:
    """Give a waiting Fetch to Python, with its remaining wait time."""
    cdef uint8_t* instead = r.fetch.instead
    cdef int64_t left_ms = max(<int64_t>0, op.timer.deadline_ms - r.now_ms)
    cdef int status = 0
    r.fetch.instead = NULL
    if instead != NULL:
        status = operation_keep_frame(op, instead, r.fetch.instead_bytes)
        free(instead)
    timer_stop(&r.timers, &op.timer)
    operation_unwatch(op)
    operation_leave_session(op)
    if status < 0:
        return NO_ANSWER
    store_be32(op.fetch.frame + op.fetch.wait_at, <int32_t>min(<int64_t>op.fetch.wait_ms, left_ms))
    return hand_over_fetch(r, op)


cdef const char* execute_again(reactor_t* r, operation_t* op) noexcept nogil:
    """Execute a Fetch again after a notification or at its deadline. The reason to close its connection, or NULL."""
    cdef conn_t* c = op.conn
    cdef cursor_t at
    cdef behind_t behind
    cdef int64_t queued = c.output.queued, began_ns = monotonic_ns()
    cdef verdict_t verdict = DECLINED
    if op.fetch.is_declined:
        return NULL
    cursor_init(&at, op.fetch.frame + AT_CORRELATION_ID, op.fetch.frame_bytes - AT_CORRELATION_ID)
    r.fetch.instead = NULL
    if not load_i32(&r.plane.diverted):
        conn_open_slot(c, op.fetch.slot, &behind)
        verdict = fetch(&r.fetch, c, &op, &at, load_be16(op.fetch.frame + AT_API_VERSION), r.now_ms)
        conn_close_slot(c, &behind)
        stages_fetched(
            r, c, op, verdict, began_ns, op.fetch.frame, op.fetch.frame_bytes, c.output.queued - queued)
    mute_throttled(r, c)
    book(r, &r.books.fetches, verdict, op.fetch.began_ns, op.fetch.frame_bytes, c.output.queued - queued)
    if verdict == DECLINED:
        return decline_fetch(r, op)
    if verdict == REFUSED or (verdict == WAITS and await_records(r, op, NULL, 0) != DONE):
        return NO_ANSWER
    if verdict == WAITS:
        return NULL
    operation_answered(op, c.output.queued - queued)
    operation_end(&r.timers, op)
    return NULL


cdef void complete_produce(reactor_t* r, operation_t* op, int64_t now_ns) noexcept nogil:
    """End a Produce if it waits for nothing any more: its response may then be sent."""
    if produce_is_settled(op, r.now_ms):
        stages_replicated(r, op, now_ns)
        r.turn.errors += produce_tell_errors(op)
        operation_end(&r.timers, op)


cdef void resume_due(reactor_t* r) noexcept nogil:
    """Handle the operations with news. No batch is gathered in this turn yet."""
    cdef operation_t* op
    cdef conn_t* c
    cdef int64_t began_ns, now_ns = monotonic_ns() if r.due.first != NULL else 0
    cdef const char* why
    while r.due.first != NULL:
        op = <operation_t*>chain_take(&r.due)
        c = op.conn
        if c == NULL:
            operation_end(&r.timers, op)
        elif op.fetch.slot == NULL:
            complete_produce(r, op, now_ns)
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
    """True if the client's login has ended: Python then handles its requests."""
    return c.login.ends_ms != 0 and r.now_ms >= c.login.ends_ms


cdef inline bint counts_known(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """True if there are no quotas, or the client's buckets are known."""
    cdef int64_t number = load_i64(&r.plane.quotas)
    if number != 0:
        return quotas_know(c.limits.quotas, number, frame, n)
    if c.limits.quotas != NULL:
        quotas_free(c.limits.quotas)
        c.limits.quotas = NULL
    return True


cdef verdict_t execute(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Execute one frame (without its size); return a verdict."""
    cdef cursor_t at
    cdef int16_t api = -1, version = 0
    cdef verdict_t verdict = DECLINED
    cdef int64_t queued = c.output.queued, began_ns
    cdef api_t* a = NULL
    cdef operation_t* op = NULL
    cdef bint again = False, known
    if n >= FRAME_BYTES_MIN:     # a shorter frame is no request; Python answers it
        api, version = load_be16(frame + AT_API_KEY), load_be16(frame + AT_API_VERSION)
        cursor_init(&at, frame + AT_CORRELATION_ID, n - AT_CORRELATION_ID)
    if load_i32(&r.plane.diverted) or login_is_over(r, c):
        api = -1
    if api == API_FETCH and c.requests.fetching != NULL:
        c.requests.behind = 1
        if fetching_of(c).fetch.is_replica:
            fetching_of(c).fetch.is_hurried = 1
            chain_append(&r.due, &fetching_of(c).due, fetching_of(c))
        return NO_ROOM
    known = counts_known(r, c, frame, n)
    if api == API_PRODUCE:
        a = &r.books.produces
    if api == API_PRODUCE and known:
        verdict = produce(&r.turn, r.plane.registry, c, &at, version)
        again = verdict == DECLINED and r.turn.count > 0  # perhaps only because the turn was full
    if verdict == DECLINED:
        drain(r)                 # the code that handles it next must see the appends before it
        if c.ending.refused != NULL:
            return REFUSED       # it failed without a response: nothing after it is executed
    r.fetch.instead = NULL
    if again:
        cursor_init(&at, frame + AT_CORRELATION_ID, n - AT_CORRELATION_ID)
        verdict = produce(&r.turn, r.plane.registry, c, &at, version)
    elif api == API_FETCH:
        a = &r.books.fetches
        began_ns = monotonic_ns()
        verdict = fetch(&r.fetch, c, &op, &at, version, r.now_ms)
        stages_fetched(r, c, op, verdict, began_ns, frame, n, c.output.queued - queued)
    elif api != API_PRODUCE and load_i32(&r.plane.mailbox.requests) >= r.plane.requests_max:
        wait_in_line(r, c, 0)
        return NO_ROOM           # Produce and Fetch, which rarely go to Python, are not held up
    if api == API_PRODUCE and verdict == DONE:
        stages_gathered(r, c, frame, n, c.output.sent + queued)
    mute_throttled(r, c)
    book(r, a, verdict, 0, n, c.output.queued - queued)
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
    if c.limits.muted_until_ms != 0:
        return False
    if c.ending.refused != NULL or c.requests.behind:
        return False
    if c.output.queued >= OUTPUT_BUDGET or c.requests.operations.count >= OPERATIONS_MAX:
        return False
    if c.output.held > 0 and pool_full(c.memory.pool):
        return False             # no more responses before it has read some
    return c.state == OPEN


cdef int64_t execute_all(reactor_t* r, conn_t* c, const uint8_t* data, int64_t n) noexcept nogil:
    """Execute the complete frames at the start of `data` while the connection may; the bytes used up."""
    cdef int64_t at = 0, length
    cdef verdict_t verdict
    while n - at >= SIZE_BYTES and may_execute(c):
        length = load_be32(data + at)
        if length < 0 or length > r.plane.frame_bytes_max:
            c.ending.refused = TLS_FRAME if data[at] == TLS_HANDSHAKE and data[at + 1] == TLS_MAJOR else BAD_FRAME
            break
        if n - at - SIZE_BYTES < length:
            break
        if turn_spent(&r.turn):
            break
        verdict = execute(r, c, data + at + SIZE_BYTES, length)
        if verdict == REFUSED and c.ending.refused == NULL:
            c.ending.refused = NO_ANSWER
        if c.ending.refused != NULL:
            break
        if verdict == NO_ROOM:
            break                # its frame stays, and is executed later
        at += SIZE_BYTES + length
    if at > 0:
        conn_repay(c)
        c.memory.mark_ms = 0
    return at


cdef void execute_own(reactor_t* r, conn_t* c) noexcept nogil:
    """Execute the frames in the connection's own buffer."""
    cdef int64_t used = execute_all(r, c, c.input.own, c.input.used)
    if used > 0 or c.ending.refused != NULL:
        drain(r)                 # gathered batches point into the buffer that is about to move
    if c.ending.refused != NULL:
        conn_free_own(c)         # bytes after the frame that ends it are not executed
    elif used > 0:
        conn_forget_own(c, used)


cdef inline bint waits(const conn_t* c) noexcept nogil:
    return c.waiting.chain != NULL


# -- reading -----------------------------------------------------------------------------------------------------------

cdef int64_t read_own(reactor_t* r, conn_t* c) noexcept nogil:
    """Read the rest of a frame into the connection's own buffer. Bytes, 0 at the end, -errno."""
    cdef int64_t need = SIZE_BYTES, got
    if c.input.used >= SIZE_BYTES:
        need = SIZE_BYTES + <int64_t>load_be32(c.input.own)  # the size is valid: execute_all checked it
    elif c.input.capacity >= OWN_KEPT:
        need = c.input.capacity
    if conn_short(c):
        wait_in_line(r, c, need - c.input.used)
        return -EAGAIN
    # Memory is allocated for received bytes, not for the announced size: the buffer doubles.
    if conn_grow_own(c, min(need, max(2 * c.input.used, <int64_t>OWN_KEPT))) < 0:
        return -ENOMEM
    got = conn_recv(c, c.input.own + c.input.used, min(need, c.input.capacity) - c.input.used)
    if got > 0:
        c.input.used += got
    return got


cdef int64_t consume(reactor_t* r, conn_t* c, uint8_t* at, int64_t got, int64_t used) noexcept nogil:
    """Receive, of `got` peeked bytes, those that were executed; the results of read_own."""
    if used > 0:
        return conn_recv(c, at, used)
    if not waits(c) and not c.requests.behind:
        wait_in_line(r, c, SIZE_BYTES + <int64_t>load_be32(at) if got >= SIZE_BYTES else <int64_t>OWN_KEPT)
    return -EAGAIN


cdef int64_t read_arena(reactor_t* r, conn_t* c) noexcept nogil:
    """Read into the arena and execute from there; the rest moves to the connection's buffer. The results of
    read_own."""
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
    if c.ending.refused != NULL:
        return got               # nothing of the input is kept
    if short:
        return consume(r, c, at, got, used)
    return -ENOMEM if used < got and conn_keep(c, at + used, got - used) < 0 else got


cdef const char* fault(int64_t got) noexcept nogil:
    """The reason to close a connection at once after a read; NULL: keep it; empty: its peer reset it."""
    if got > 0 or got == -EAGAIN or got == -EINTR:
        return NULL
    return "no memory for a request" if got == -ENOMEM else ""


cdef int64_t take_input(reactor_t* r, conn_t* c) noexcept nogil:
    """Read from a connection once, and execute the input; the results of read_own."""
    cdef int64_t got
    if c.input.used > 0 or c.input.capacity >= OWN_KEPT:
        got = read_own(r, c)
        if got > 0:
            execute_own(r, c)
    else:
        got = read_arena(r, c)
    if got > 0:
        tally(&r.books.bytes_in, got)
        c.input.received += got
    elif got == -EAGAIN and not waits(c):
        c.input.readable = 0
    return got


cdef bint may_read(const conn_t* c) noexcept nogil:
    return c.state == OPEN and c.input.readable and not c.ending.close_after and may_execute(c)


cdef const char* serve(reactor_t* r, conn_t* c) noexcept nogil:
    """Serve one connection in a turn: execute its buffer, then read and execute a few times. Returns as fault()
    does."""
    cdef const char* why = NULL
    cdef int64_t got, began_ns = charge_from(c), begin = conn_position(c)
    cdef int reads = 0
    if c.requests.fetching != NULL and fetching_of(c).fetch.is_declined:
        why = hand_over_fetch(r, fetching_of(c))
        if why != NULL:
            return why
    turn_share(&r.turn)
    if c.input.used > 0:
        execute_own(r, c)
    while may_read(c) and reads < READS_MAX and not turn_spent(&r.turn):
        reads += 1
        got = take_input(r, c)
        if got == 0:
            c.ending.close_after = 1  # the end; outstanding responses are still sent
            break
        why = fault(got)
        if why != NULL or waits(c) or (c.tls != NULL and c.tls.is_spent):
            break
    mute_look(c)
    if began_ns != 0:
        drain(r)                 # its appends count as its time
        charge(r, c, began_ns if conn_position(c) != begin else 0)
    return why


cdef bint has_work(const conn_t* c) noexcept nogil:
    """True if there is something to read or to execute, and it may be done now."""
    if c.state != OPEN or waits(c) or not may_execute(c):
        return False
    if c.input.readable and not c.ending.close_after:
        return True
    return c.input.used >= SIZE_BYTES and c.input.used - SIZE_BYTES >= <int64_t>load_be32(c.input.own)
