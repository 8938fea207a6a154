"""Operations: requests that were executed, or begun, and whose answers wait.

    Produce    its answer is in the output; nothing from there on is sent until its logs are on disk, where a topic asks
               for that, and with acks=all until the high watermark has passed its records, or until its deadline
    Fetch      waits for records or its deadline; its answer goes into a slot of the output, and it is executed again

One operation a request, over all its partitions. Only its answer waits, with those behind it: the connection's next
requests are executed meanwhile. The operation belongs to the reactor. Who works for it, a syncer or a reader, tells it
through the inbox, once each; a partition that it watches tells it there, too. It is over when it is answered, or when
its connection goes; its memory goes when nobody is left who will tell it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from pybroker.core.base.chain cimport chain_append, chain_insert, chain_remove, link_t
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport partition_drop, partition_unwatch
from pybroker.core.plane.conn cimport conn_hold, conn_t, operation_t, awaited_t
from pybroker.core.plane.fetch_session cimport session_drop, session_leave
from pybroker.core.plane.mailbox cimport ring
from pybroker.core.plane.timer cimport timer_stop, timers_t
from pybroker.core.storage.group_commit cimport sync_leave


cdef operation_t* operation_new(conn_t* c, int32_t awaited_count) noexcept nogil:
    """An operation of a connection that waits for so many partitions; NULL without memory. It is in no line yet."""
    cdef operation_t* op = <operation_t*>calloc(1, sizeof(operation_t) + awaited_count * sizeof(awaited_t))
    if op == NULL:
        return NULL
    op.conn = c
    op.inbox = c.inbox
    op.inbox.operations += 1
    op.heap_index = -1
    op.deadline_ms = NEVER
    op.awaited_count = awaited_count
    op.awaited = <awaited_t*>(op + 1)
    return op


cdef void operation_list(operation_t* op, int64_t begin) noexcept nogil:
    """From here on no answer of its connection is sent that begins at `begin` or later."""
    cdef link_t* before = NULL
    cdef link_t* last = op.conn.operations.last
    op.begin = begin
    while last != NULL and (<operation_t*>last.owner).begin > begin:
        before = last            # a Fetch waits at once, a Produce before it from the turn's end on
        last = last.previous
    chain_insert(&op.conn.operations, before, &op.listed, op)


cdef int operation_keep_frame(operation_t* op, const uint8_t* frame, int64_t n) noexcept nogil:
    """Keep a copy of its request instead of the one that it has; -1 without memory."""
    cdef uint8_t* copy = <uint8_t*>malloc(n)
    if copy == NULL:
        return -1
    memcpy(copy, frame, n)
    conn_hold(op.conn, n - op.frame_bytes)
    free(op.frame)
    op.frame = copy
    op.frame_bytes = n
    return 0


cdef void operation_unwatch(operation_t* op) noexcept nogil:
    """Take all watches back, and let go of their partitions."""
    cdef int32_t i
    for i in range(op.parked_count):
        partition_unwatch(&op.parked[i].watch)
        partition_drop(op.parked[i].held)
    free(op.parked)
    op.parked = NULL
    op.parked_count = 0
    for i in range(op.awaited_count):
        partition_unwatch(&op.awaited[i].watch)


cdef void operation_leave_session(operation_t* op) noexcept nogil:
    """Let go of the session whose Fetch waits no longer."""
    if op.session != NULL:
        session_leave(op.session, &op.waiter)
        session_drop(op.session)
        op.session = NULL


cdef void operation_tell(operation_t* op) noexcept nogil:
    """Have its reactor look at it. From any thread, under the inbox's lock."""
    if chain_append(&op.inbox.told, &op.told, op) and not op.inbox.rung:
        op.inbox.rung = 1
        ring(op.inbox.bell)


cdef void operation_look(operation_t* op) noexcept nogil:
    """Have its reactor look at it in its next turn."""
    pthread_mutex_lock(&op.inbox.lock)
    operation_tell(op)
    pthread_mutex_unlock(&op.inbox.lock)


cdef void operation_answered(operation_t* op, int64_t n) noexcept nogil:
    """So many bytes were put into its slot: what is behind it begins so much later."""
    cdef link_t* link = op.listed.next
    while link != NULL:
        (<operation_t*>link.owner).begin += n
        link = link.next


cdef void leave_conn(timers_t* timers, operation_t* op) noexcept nogil:
    """Give back what it holds for its connection, which need wait for it no longer."""
    cdef conn_t* c = op.conn
    chain_remove(&op.listed)
    timer_stop(timers, op)
    operation_unwatch(op)
    if op.slot != NULL:
        op.slot.is_slot = 0
    operation_leave_session(op)
    if op.frame != NULL:
        conn_hold(c, -op.frame_bytes)
        free(op.frame)
        op.frame = NULL
    if c.away == op:
        c.away = NULL
    if c.fetching == op:
        c.fetching = NULL
        c.behind = 0
    op.conn = NULL


cdef void operation_end(timers_t* timers, operation_t* op) noexcept nogil:
    """It is over, and its connection has something to do. It is freed here, or by the call that follows the last who
    told it."""
    cdef int32_t i, refs
    if op.conn != NULL:
        leave_conn(timers, op)
    pthread_mutex_lock(&op.inbox.lock)
    refs = op.refs
    if refs == 0:
        chain_remove(&op.told)
    pthread_mutex_unlock(&op.inbox.lock)
    if refs > 0:
        return
    chain_remove(&op.due)
    for i in range(op.awaited_count):
        if op.awaited[i].sync.log != NULL:
            sync_leave(&op.awaited[i].sync)
        partition_drop(op.awaited[i].partition)
    op.inbox.operations -= 1
    free(op)


cdef void operations_end(timers_t* timers, conn_t* c) noexcept nogil:
    """The connection goes: nothing of it is answered any more."""
    while c.operations.first != NULL:
        operation_end(timers, <operation_t*>c.operations.first.owner)
