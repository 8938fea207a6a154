"""The budget of descriptors for segments, however many segments there are; the other descriptors are for connections.

Opening a segment takes one. When fewer than an eighth are left, idle segments are closed in the background
(idle_files.pyx), down to three quarters. When none is left, a read or an append gets -EMFILE: a reactor sends the error
to its client at once, other threads wait for a descriptor. A roll and a start cannot fail, and take one beyond the
budget; these are few.

RocksDB's table cache does the same with a lock around look-ups. Here one load finds an open segment, and the reader's
pin replaces the lock.
"""

from libc.stdint cimport int32_t, int64_t
from posix.unistd cimport usleep

from pybroker.core.base.atomic cimport add_i32, load_i32
from pybroker.core.base.clock cimport monotonic_ms

cdef enum:
    WAIT_MS = 5000           # for a descriptor
    LOOK_US = 500            # between two checks


cdef bint budget_take(budget_t* b, bint must) noexcept nogil:
    """Count a descriptor that is about to be opened; False if none is left. With `must` the limit may be exceeded."""
    cdef int32_t most = load_i32(&b.most)
    cdef int32_t taken = add_i32(&b.open, 1)
    if most == 0:
        return True
    if taken > most - most // 8:
        budget_ask(b)
    if taken <= most or must:
        return True
    add_i32(&b.open, -1)
    return False


cdef void budget_give(budget_t* b) noexcept nogil:
    """Uncount a descriptor that was closed, or could not be opened."""
    add_i32(&b.open, -1)


cdef void budget_ask(budget_t* b) noexcept nogil:
    """Request that idle segments are closed."""
    if b.crowded != NULL:
        b.crowded(b.owner)


cdef int32_t budget_excess(const budget_t* b) noexcept nogil:
    """The number of descriptors to close after a request; never 0, as the system's limit may be lower than ours."""
    cdef int32_t most = load_i32(&b.most), open_ = load_i32(&b.open)
    return max(open_ - (most - most // 4) if most else 0, max(open_ // 16, <int32_t>1))


cdef bint budget_wait(budget_t* b) noexcept nogil:
    """Wait for a free descriptor; False after WAIT_MS. The caller holds no pin and no lock."""
    cdef int64_t until_ms = monotonic_ms() + WAIT_MS
    add_i32(&b.waiting, 1)
    budget_ask(b)
    usleep(LOOK_US)
    while load_i32(&b.open) >= load_i32(&b.most) > 0 and monotonic_ms() < until_ms:
        usleep(LOOK_US)
    add_i32(&b.waiting, -1)
    return monotonic_ms() < until_ms
