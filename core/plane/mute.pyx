"""Connections that are muted: their answer went out, and says for how long nothing more of them is read.

    open ──its client did too much──> muted ──the time is over, or quotas are others now──> open

Nobody else waits: a muted connection is in no line. Its peer may leave meanwhile: if there is nothing of it to execute,
the connection ends then. Those that are muted for long are looked at a few times in that time, and no more.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.base.chain cimport chain_append, chain_remove, link_t
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.plane.conn cimport conn_peek, conn_t
from pybroker.core.plane.quota_bucket cimport bucket_record
from pybroker.core.plane.reactor cimport make_ready, reactor_t

cdef enum:
    EARLY_MS = 3                 # they go on, so that many of them are not looked at at each turn


cdef void mute(reactor_t* r, conn_t* c, int64_t ms) noexcept nogil:
    c.throttle_ms = 0
    c.muted_until_ms = max(c.muted_until_ms, r.now_ms + ms)
    if r.muted.first == NULL:
        r.unmute_ms = c.muted_until_ms
    r.unmute_ms = min(r.unmute_ms, c.muted_until_ms)
    chain_append(&r.muted, &c.muted, c)
    mute_look(c)


cdef void unmute(reactor_t* r, conn_t* c) noexcept nogil:
    chain_remove(&c.muted)
    c.muted_until_ms = c.lingers = 0
    c.active_ms = r.now_ms       # it was not idle
    if c.listed.chain != NULL:
        chain_remove(&c.listed)
        chain_append(&r.listed, &c.listed, c)
    make_ready(r, c)


cdef void unmute_due(reactor_t* r) noexcept nogil:
    cdef link_t* link = r.muted.first
    cdef int64_t number = load_i64(&r.plane.quotas), next_ms = INT64_MAX
    cdef conn_t* c
    if link == NULL or (r.now_ms < r.unmute_ms and number == r.quotas):
        r.quotas = number
        return
    while link != NULL:
        c = <conn_t*>link.owner
        link = link.next
        if number != r.quotas or c.muted_until_ms <= r.now_ms + EARLY_MS:
            unmute(r, c)
        else:
            next_ms = min(next_ms, c.muted_until_ms)
    r.quotas = number
    r.unmute_ms = next_ms


cdef void mute_look(conn_t* c) noexcept nogil:
    cdef uint8_t byte
    if c.muted_until_ms == 0 or not c.ended or c.own_used > 0 or c.fd < 0:
        return
    if conn_peek(c, &byte, 1) == 0:
        c.close_after = 1        # it still gets the answers that it is owed


cdef void charge(reactor_t* r, conn_t* c, int64_t began_ns) noexcept nogil:
    if began_ns != 0 and c.quotas != NULL and c.quotas.request != NULL:
        bucket_record(c.quotas.request, monotonic_ns() - began_ns, r.now_ms)
