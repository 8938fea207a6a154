"""The memory that requests may hold, over all connections of a broker: received and not yet answered.

While the pool is short, a request that is whole when it is looked at is still executed from the socket: it costs nothing.
Whoever needs memory for the rest of its request waits in its reactor's line; one connection of the broker at a time, the
holder, is let through past the limit, so that a pool full of half-received requests does not stand still. A holder that
does not complete its request in time is closed. So what is held stays below the limit and one request.
"""

from libc.stdint cimport int64_t

from pybroker.core.atomic cimport add_i64, cas_i64, load_i64

cdef struct pool_t:
    int64_t limit                # bytes: queued.max.request.bytes
    int64_t held
    int64_t holder               # the id of the connection that goes beyond the limit; 0: none


cdef inline void pool_take(pool_t* p, int64_t n) noexcept nogil:
    """n bytes more are held, or with n < 0 fewer."""
    add_i64(&p.held, n)


cdef inline bint pool_short(pool_t* p, int64_t id) noexcept nogil:
    """Must the connection `id` wait before it receives more?"""
    return load_i64(&p.held) >= p.limit and load_i64(&p.holder) != id


cdef inline bint pool_lead(pool_t* p, int64_t id) noexcept nogil:
    """Be the holder; False while another is."""
    return cas_i64(&p.holder, 0, id)


cdef inline void pool_leave(pool_t* p, int64_t id) noexcept nogil:
    """The request is whole, or its connection ends."""
    if load_i64(&p.holder) == id:
        cas_i64(&p.holder, id, 0)
