"""Connections that are muted: their response was sent, with the throttle time for which nothing more is read.

    open ──its client exceeded a quota──> muted ──the time is over, or the quotas changed──> open

No other connection waits: a muted one is in no line. If its peer disconnects meanwhile, and no request of it is left,
the connection ends. Connections that are muted for long are checked only a few times.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.base.chain cimport chain_append, chain_remove, link_t
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.plane.connection.conn cimport conn_peek, conn_t
from pybroker.core.plane.limits.quota_bucket cimport bucket_record
from pybroker.core.plane.thread.reactor cimport make_ready, reactor_t

cdef enum:
    EARLY_MS = 3                 # unmute so much before the time, so that fewer turns check the list


cdef void mute(reactor_t* r, conn_t* c, int64_t ms) noexcept nogil:
    c.limits.throttle_ms = 0
    c.limits.muted_until_ms = max(c.limits.muted_until_ms, r.now_ms + ms)
    if r.muted.first == NULL:
        r.looks.unmute_ms = c.limits.muted_until_ms
    r.looks.unmute_ms = min(r.looks.unmute_ms, c.limits.muted_until_ms)
    chain_append(&r.muted, &c.muted, c)
    mute_look(c)


cdef void unmute(reactor_t* r, conn_t* c) noexcept nogil:
    chain_remove(&c.muted)
    c.limits.muted_until_ms = c.ending.lingers = 0
    c.active_ms = r.now_ms       # it was not idle
    if c.listed.chain != NULL:
        chain_remove(&c.listed)
        chain_append(&r.listed, &c.listed, c)
    make_ready(r, c)


cdef void unmute_due(reactor_t* r) noexcept nogil:
    cdef link_t* link = r.muted.first
    cdef int64_t number = load_i64(&r.plane.quotas), next_ms = INT64_MAX
    cdef conn_t* c
    if link == NULL or (r.now_ms < r.looks.unmute_ms and number == r.looks.quotas):
        r.looks.quotas = number
        return
    while link != NULL:
        c = <conn_t*>link.owner
        link = link.next
        if number != r.looks.quotas or c.limits.muted_until_ms <= r.now_ms + EARLY_MS:
            unmute(r, c)
        else:
            next_ms = min(next_ms, c.limits.muted_until_ms)
    r.looks.quotas = number
    r.looks.unmute_ms = next_ms


cdef void mute_look(conn_t* c) noexcept nogil:
    cdef uint8_t byte
    if c.limits.muted_until_ms == 0 or not c.input.ended or c.input.used > 0 or c.fd < 0:
        return
    if conn_peek(c, &byte, 1) == 0:
        c.ending.close_after = 1  # outstanding responses are still sent


cdef void charge(reactor_t* r, conn_t* c, int64_t began_ns) noexcept nogil:
    if began_ns != 0 and c.limits.quotas != NULL and c.limits.quotas.request != NULL:
        bucket_record(c.limits.quotas.request, monotonic_ns() - began_ns, r.now_ms)
