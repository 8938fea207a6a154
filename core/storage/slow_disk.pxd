"""A log on a slow disk: reactors leave its reads and its appends to threads for a while.

A reactor reads and appends itself, for as a rule both are done in the page cache. Where the disk makes it wait, all of
its connections wait. Nobody can know that before. But a log that made somebody wait for SLOW_MS is left to Python's
threads for SLOW_SHARE times as long, so that reactors stand still for it for less than 1 % of the time. An append that
comes while another one of the same log is still in its write is left to them as well.
"""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport peek_i64, poke_i64
from pybroker.core.base.clock cimport monotonic_ms

cdef enum:
    SLOW_MS = 500                # longer than the kernel pauses a writer for its share of pages to be written
    SLOW_SHARE = 100
    SLOW_MS_MAX = 100000
    STANDS_MS = 20               # in a write, before others are not to wait for it

cdef struct slow_t:              # of the reads of a log, or of its appends
    int64_t until_ms             # they are left to threads; 0: they never were slow
    int64_t since_ms             # an append is in its file calls; 0: none is


cdef inline void slow_note(slow_t* s, int64_t began_ms) noexcept nogil:
    """File calls that began then have ended."""
    cdef int64_t now_ms = monotonic_ms()
    if now_ms - began_ms >= SLOW_MS:
        poke_i64(&s.until_ms, now_ms + min((now_ms - began_ms) * SLOW_SHARE, <int64_t>SLOW_MS_MAX))


cdef inline bint slow_is(const slow_t* s) noexcept nogil:
    """Would a reactor have to fear that it waits?"""
    cdef int64_t until_ms = peek_i64(&s.until_ms), since_ms = peek_i64(&s.since_ms)
    if until_ms == 0 and since_ms == 0:
        return False
    return monotonic_ms() < until_ms or (since_ms != 0 and monotonic_ms() - since_ms >= STANDS_MS)
