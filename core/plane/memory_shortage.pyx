"""What a reactor does while memory is short (`pool`): who waits, who goes on, who has to go.

    in line ──room, or let through──> reads its request ──whole──> executed, what was lent is given back
       ^── the pool is full, or Python has too many requests

Those who hold memory and do not get on are closed, the one that was silent for longest first, until there is room:

    stalled      the broker waits for its bytes, or for it to read its answers, and for STALL_MS next to nothing moved
    overdue      it was let through past the limit and took longer than its time for the request
    over share   its address holds more than its fair share, and another address claims its own

A client that is closed so may connect again and send its request again, as after any loss of a connection.
"""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i32, load_i64, store_i64
from pybroker.core.base.chain cimport chain_append, chain_remove, link_t
from pybroker.core.plane.conn cimport OPEN, conn_empty, conn_free_own, conn_holds, conn_t
from pybroker.core.plane.disconnect cimport close_conn
from pybroker.core.plane.memory_pool cimport pool_full, pool_lend, pool_share, pool_t
from pybroker.core.plane.reactor cimport make_ready, reactor_t

cdef enum:
    STALL_MS = 1000
    STALL_BYTES = 16 << 10       # who moves fewer in STALL_MS is stalled
    CLAIM_MS = 2 * LOOK_MS       # so long after an address claimed its share others make room for it


# -- the line ----------------------------------------------------------------------------------------------------------

cdef void wait_in_line(reactor_t* r, conn_t* c, int64_t wanted) noexcept nogil:
    """Neither read nor execute for this connection until there is room: for so many bytes, 0 if it waits for Python."""
    c.wanted = wanted
    c.mark_ms = 0                # from here on it waits for us
    chain_append(&r.waiting, &c.waiting, c)


cdef bint deserves(const conn_t* c, const conn_t* other) noexcept nogil:
    """Does one that waits for memory go before another?"""
    cdef int64_t held = load_i64(&c.address.held), others = load_i64(&other.address.held)
    if c.address == other.address or held == others:
        return c.wanted < other.wanted
    return held < others


cdef void let_go_on(reactor_t* r, conn_t* c) noexcept nogil:
    chain_remove(&c.waiting)
    make_ready(r, c)


cdef conn_t* first_in_line(reactor_t* r) noexcept nogil:
    """Of those that wait for memory the one that goes first; NULL: none waits."""
    cdef link_t* link = r.waiting.first
    cdef conn_t* first = NULL
    cdef conn_t* c
    while link != NULL:
        c = <conn_t*>link.owner
        if c.wanted > 0 and (first == NULL or deserves(c, first)):
            first = c
        link = link.next
    return first


cdef void move_line(reactor_t* r) noexcept nogil:
    """Let those go on for whom there is room by now."""
    cdef pool_t* p = &r.plane.pool
    cdef bint fair, full = pool_full(p), busy = load_i32(&r.plane.mailbox.requests) >= r.plane.requests_max
    cdef link_t* link = r.waiting.first
    cdef link_t* after
    cdef conn_t* c
    while link != NULL:
        after = link.next
        c = <conn_t*>link.owner
        if not (full if c.wanted > 0 else busy):
            let_go_on(r, c)
        link = after
    while full:
        c = first_in_line(r)
        if c == NULL:
            return
        fair = load_i64(&c.address.held) + c.wanted <= pool_share(p)
        c.loan = pool_lend(p, c.wanted, fair)
        if c.loan == 0:
            return
        if fair:
            store_i64(&p.claimed_ms, r.now_ms)
        c.loan_ms = r.now_ms
        let_go_on(r, c)


# -- who has to go -----------------------------------------------------------------------------------------------------

cdef const char* must_go(reactor_t* r, conn_t* c, bint claimed) noexcept nogil:
    """Why a connection has to make room; NULL: it may stay."""
    cdef int64_t moved = c.bytes_in + c.bytes_out
    if c.state != OPEN or c.fetcher != NULL or c.fd < 0 or c.operations.first != NULL or conn_holds(c) == 0:
        c.mark_ms = 0
        return NULL
    if claimed and c.loan == 0 and load_i64(&c.address.held) > pool_share(&r.plane.pool):
        return "its address holds more than its share of the memory for requests"
    if c.loan != 0 and r.now_ms - c.loan_ms > r.plane.holder_ms:
        return "it was too slow with a request while memory is short"
    if c.muted_until_ms != 0 or c.large.chain != NULL:
        c.mark_ms = 0            # it waits for us
    if c.waiting.chain != NULL or c.muted_until_ms != 0:
        return NULL
    if c.mark_ms == 0 or moved - c.mark >= STALL_BYTES:
        c.mark = moved
        c.mark_ms = r.now_ms
    elif r.now_ms - c.mark_ms >= STALL_MS:
        return "it neither sent its request nor read its answers while memory is short"
    return NULL


cdef void relieve(reactor_t* r) noexcept nogil:
    """While the pool is full, a few times a second: take back what rests, close who has to go, until there is room."""
    cdef pool_t* p = &r.plane.pool
    cdef bint claimed = r.now_ms - load_i64(&p.claimed_ms) <= CLAIM_MS
    cdef link_t* link = r.listed.first
    cdef conn_t* c
    cdef const char* why
    if r.now_ms - r.relieved_ms < LOOK_MS or not pool_full(p):
        return
    r.relieved_ms = r.now_ms
    while link != NULL and pool_full(p):
        c = <conn_t*>link.owner
        link = link.next
        if c.own != NULL and c.own_used == 0:
            conn_free_own(c)
        why = must_go(r, c, claimed)
        if why != NULL:
            conn_empty(c)        # now, so that no more are closed than need be
            close_conn(r, c, why)
