"""Letters to Python about a partition that it watches: the partition grew, or a follower has caught up."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.partition.partition cimport partition_drop, partition_hold, partition_t, partition_unwatch, watch_t
from pybroker.core.plane.connection.mailbox cimport GROWN, JOINING, mailbox_put
from pybroker.core.plane.thread.reactor cimport plane_t


cdef bell_t* bell_new(plane_t* plane, partition_t* p, int64_t id) noexcept nogil:
    """A bell that watches nothing yet, and holds the partition; its letters have the id. NULL without memory."""
    cdef bell_t* b = <bell_t*>calloc(1, sizeof(bell_t))
    if b == NULL:
        return NULL
    b.id = id
    b.plane = plane
    b.held = p
    b.committed.owner = b.written.owner = b.joining.owner = b
    b.committed.notify = b.written.notify = grown
    b.joining.notify = joining
    partition_hold(p)
    return b


cdef void bell_free(bell_t* b) noexcept nogil:
    """Stop watching the partition, and release it."""
    partition_unwatch(&b.committed)
    partition_unwatch(&b.written)
    partition_unwatch(&b.joining)
    partition_drop(b.held)
    free(b)


cdef void grown(watch_t* w) noexcept nogil:
    """Notify Python that the partition grew, or was removed."""
    cdef bell_t* b = <bell_t*>w.owner
    mailbox_put(&b.plane.mailbox, GROWN, b.id, NULL, NULL, 0)


cdef void joining(watch_t* w) noexcept nogil:
    """Notify Python that a follower of the partition has caught up, or the partition was removed."""
    cdef bell_t* b = <bell_t*>w.owner
    mailbox_put(&b.plane.mailbox, JOINING, b.id, NULL, NULL, 0)
