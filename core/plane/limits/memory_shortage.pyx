"""Memory shortage on a reactor (`pool`): which connections wait, go on, or are closed.

    in line ──memory is free, or lent──> reads its request ──complete──> executed, the loan is repaid
       ^── the pool is full, or Python has too many requests.

Connections that hold memory without progress are closed, the longest idle first, until the pool has room:

    stalled      for STALL_MS it sent almost nothing of its request, or read almost nothing of its responses;
    overdue      memory was lent to it, and its request took longer than holder_ms;
    over share   its address holds more than its fair share, and another address claims its own.

The client may connect again and repeat its request, as after any loss of a connection.
"""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport load_i32, load_i64, store_i64
from pybroker.core.base.chain cimport chain_append, chain_remove, link_t
from pybroker.core.plane.connection.conn cimport OPEN, conn_empty, conn_free_own, conn_holds, conn_t
from pybroker.core.plane.connection.disconnect cimport close_conn
from pybroker.core.plane.limits.memory_pool cimport pool_full, pool_lend, pool_share, pool_t
from pybroker.core.plane.thread.reactor cimport make_ready, reactor_t

cdef enum:
    STALL_MS = 1000
    STALL_BYTES = 16 << 10       # a connection that moves fewer in STALL_MS is stalled
    CLAIM_MS = 2 * LOOK_MS       # for so long after an address claims its share, connections over theirs are closed


# -- the line ----------------------------------------------------------------------------------------------------------

cdef void wait_in_line(reactor_t* r, conn_t* c, int64_t wanted) noexcept nogil:
    """Stop reading and executing until so many bytes of memory are free; 0: until Python has fewer requests."""
    c.memory.wanted = wanted
    c.memory.mark_ms = 0         # from here on it waits for the broker
    chain_append(&r.waiting, &c.waiting, c)


cdef bint deserves(const conn_t* c, const conn_t* other) noexcept nogil:
    """True if a connection that waits for memory goes before another."""
    cdef int64_t held = load_i64(&c.memory.address.held), others = load_i64(&other.memory.address.held)
    if c.memory.address == other.memory.address or held == others:
        return c.memory.wanted < other.memory.wanted
    return held < others


cdef void let_go_on(reactor_t* r, conn_t* c) noexcept nogil:
    chain_remove(&c.waiting)
    make_ready(r, c)


cdef conn_t* first_in_line(reactor_t* r) noexcept nogil:
    """The first connection in line that waits for memory; NULL: none."""
    cdef link_t* link = r.waiting.first
    cdef conn_t* first = NULL
    cdef conn_t* c
    while link != NULL:
        c = <conn_t*>link.owner
        if c.memory.wanted > 0 and (first == NULL or deserves(c, first)):
            first = c
        link = link.next
    return first


cdef void move_line(reactor_t* r) noexcept nogil:
    """Let connections go on for which there is room now."""
    cdef pool_t* p = &r.plane.pool
    cdef bint fair, full = pool_full(p), busy = load_i32(&r.plane.mailbox.requests) >= r.plane.requests_max
    cdef link_t* link = r.waiting.first
    cdef link_t* after
    cdef conn_t* c
    while link != NULL:
        after = link.next
        c = <conn_t*>link.owner
        if not (full if c.memory.wanted > 0 else busy):
            let_go_on(r, c)
        link = after
    while full:
        c = first_in_line(r)
        if c == NULL:
            return
        fair = load_i64(&c.memory.address.held) + c.memory.wanted <= pool_share(p)
        c.memory.loan = pool_lend(p, c.memory.wanted, fair)
        if c.memory.loan == 0:
            return
        if fair:
            store_i64(&p.claimed_ms, r.now_ms)
        c.memory.loan_ms = r.now_ms
        let_go_on(r, c)


# -- closing -----------------------------------------------------------------------------------------------------------

cdef const char* must_go(reactor_t* r, conn_t* c, bint claimed) noexcept nogil:
    """The reason to close a connection for its memory; NULL: it stays."""
    cdef int64_t moved = c.input.received + c.output.sent
    if c.state != OPEN or c.fetcher != NULL or c.fd < 0 or c.requests.operations.first != NULL or conn_holds(c) == 0:
        c.memory.mark_ms = 0
        return NULL
    if claimed and c.memory.loan == 0 and load_i64(&c.memory.address.held) > pool_share(&r.plane.pool):
        return "its address holds more than its share of the memory for requests"
    if c.memory.loan != 0 and r.now_ms - c.memory.loan_ms > r.plane.holder_ms:
        return "it was too slow with a request while memory is short"
    if c.limits.muted_until_ms != 0 or c.large.chain != NULL:
        c.memory.mark_ms = 0     # it waits for the broker
    if c.waiting.chain != NULL or c.limits.muted_until_ms != 0:
        return NULL
    if c.memory.mark_ms == 0 or moved - c.memory.mark >= STALL_BYTES:
        c.memory.mark = moved
        c.memory.mark_ms = r.now_ms
    elif r.now_ms - c.memory.mark_ms >= STALL_MS:
        return "it neither sent its request nor read its answers while memory is short"
    return NULL


cdef void relieve(reactor_t* r) noexcept nogil:
    """While the pool is full, every LOOK_MS: free idle buffers, and close connections, until there is room."""
    cdef pool_t* p = &r.plane.pool
    cdef bint claimed = r.now_ms - load_i64(&p.claimed_ms) <= CLAIM_MS
    cdef link_t* link = r.listed.first
    cdef conn_t* c
    cdef const char* why
    if r.now_ms - r.looks.relieved_ms < LOOK_MS or not pool_full(p):
        return
    r.looks.relieved_ms = r.now_ms
    while link != NULL and pool_full(p):
        c = <conn_t*>link.owner
        link = link.next
        if c.input.own != NULL and c.input.used == 0:
            conn_free_own(c)
        why = must_go(r, c, claimed)
        if why != NULL:
            conn_empty(c)        # now, so that no more connections are closed than needed
            close_conn(r, c, why)
