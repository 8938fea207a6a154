"""The budget of descriptors: segments keep so many open, whatever their number, and the rest is there for connections.

Who opens a segment takes one. Where fewer than an eighth are left, idle segments are closed in the background
(idle_files.pyx), down to three quarters; where none is left, a read or an append gets -EMFILE. It says that to its
client at once on a reactor, and waits for one elsewhere. What has no way back, a roll or a start, takes one beyond the
budget: such are few.

RocksDB's table cache does the same with a lock around look-ups. Here an open segment is found by one load, and the lock
is the pin that every reader has.
"""

from libc.stdint cimport int32_t, int64_t
from posix.unistd cimport usleep

from pybroker.core.base.atomic cimport add_i32, load_i32
from pybroker.core.base.clock cimport monotonic_ms

cdef enum:
    WAIT_MS = 5000           # for a descriptor
    LOOK_US = 500            # between two looks whether there is one


cdef bint budget_take(budget_t* b, bint must) noexcept nogil:
    """Count a descriptor that is about to be opened; False if there is none left, unless it `must` be."""
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
    """A descriptor was closed, or could not be opened."""
    add_i32(&b.open, -1)


cdef void budget_ask(budget_t* b) noexcept nogil:
    """Have idle segments closed."""
    if b.crowded != NULL:
        b.crowded(b.owner)


cdef int32_t budget_excess(const budget_t* b) noexcept nogil:
    """How many descriptors are to be closed once it was asked for. Some always: the system may have fewer than we
    think."""
    cdef int32_t most = load_i32(&b.most), open_ = load_i32(&b.open)
    return max(open_ - (most - most // 4) if most else 0, max(open_ // 16, <int32_t>1))


cdef bint budget_wait(budget_t* b) noexcept nogil:
    """Wait until there is a descriptor, without a pin and without a lock; False if there is none in time."""
    cdef int64_t until_ms = monotonic_ms() + WAIT_MS
    add_i32(&b.waiting, 1)
    budget_ask(b)
    usleep(LOOK_US)
    while load_i32(&b.open) >= load_i32(&b.most) > 0 and monotonic_ms() < until_ms:
        usleep(LOOK_US)
    add_i32(&b.waiting, -1)
    return monotonic_ms() < until_ms
