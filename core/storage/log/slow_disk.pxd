"""A log on a slow disk: reactors leave its reads and its appends to threads for a while.

A reactor reads and appends itself, as both usually go to the page cache. If the disk blocks it, all of its connections
wait. That cannot be predicted. So a log that blocked a thread for SLOW_MS or more is left to Python's threads for
SLOW_SHARE times as long: reactors are blocked by it for less than 1 % of the time. An append that comes while another
one of the same log is still in its write is left to these threads as well.
"""

from libc.stdint cimport int64_t

from pybroker.core.base.atomic cimport peek_i64, poke_i64
from pybroker.core.base.clock cimport monotonic_ms, monotonic_ns

cdef enum:
    SLOW_MS = 500                # longer than the kernel throttles a writer of dirty pages
    SLOW_SHARE = 100
    SLOW_MS_MAX = 100000
    STANDS_MS = 20               # after this time in a write, reactors no longer wait for it

cdef struct slow_t:              # of a log's reads, or of its appends
    int64_t until_ms             # left to threads until then; 0: never slow
    int64_t since_ms             # when the append began that is in its file calls now; 0: none is


cdef inline int64_t slow_note(slow_t* s, int64_t began_ns) noexcept nogil:
    """Note the end of file calls that began at `began_ns`; the time they took, in microseconds."""
    cdef int64_t took_us = (monotonic_ns() - began_ns) // 1000, took_ms = took_us // 1000
    if took_ms >= SLOW_MS:
        poke_i64(&s.until_ms, began_ns // 1000000 + took_ms + min(took_ms * SLOW_SHARE, <int64_t>SLOW_MS_MAX))
    return took_us


cdef inline bint slow_is(const slow_t* s) noexcept nogil:
    """True if a reactor could be blocked, so that the work is left to threads."""
    cdef int64_t until_ms = peek_i64(&s.until_ms), since_ms = peek_i64(&s.since_ms)
    if until_ms == 0 and since_ms == 0:
        return False
    return monotonic_ms() < until_ms or (since_ms != 0 and monotonic_ms() - since_ms >= STANDS_MS)
