"""Operations: requests that were executed, or begun, and whose responses wait.

    Produce    its response is in the output. Nothing from there on is sent until the logs are on disk, if the topic
               asks for that, and with acks=all until the high watermark has passed its records or the deadline
    Fetch      waits for records or its deadline; its response goes into a slot of the output, and it is executed again

There is one operation for a request with all its partitions. Only responses wait, this one and those after it: the
connection's next requests are executed meanwhile. The operation belongs to the reactor. Threads that work for it, a
syncer or a reader, notify it through the inbox, once each; so do partitions that it watches. It ends when it is
answered, or with its connection; its memory is freed when no thread is left that will notify it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from pybroker.core.base.chain cimport chain_append, chain_insert, chain_remove, link_t
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport partition_drop, partition_unwatch
from pybroker.core.plane.connection.conn cimport conn_hold, conn_t
from pybroker.core.plane.connection.mailbox cimport ring
from pybroker.core.plane.connection.timer cimport timer_stop, timers_t
from pybroker.core.plane.requests.fetch_session cimport session_drop, session_leave
from pybroker.core.storage.background.group_commit cimport sync_leave


cdef operation_t* operation_new(conn_t* c, int32_t awaited_count) noexcept nogil:
    """A new operation that waits for so many partitions; NULL without memory. It is in no list yet."""
    cdef operation_t* op = <operation_t*>calloc(1, sizeof(operation_t) + awaited_count * sizeof(awaited_t))
    if op == NULL:
        return NULL
    op.conn = c
    op.inbox = c.inbox
    op.inbox.operations += 1
    op.timer.owner = op
    op.timer.index = -1
    op.timer.deadline_ms = NEVER
    op.produce.awaited_count = awaited_count
    op.produce.awaited = <awaited_t*>(op + 1)
    return op


cdef void hold_back(conn_t* c) noexcept nogil:
    """Send only output before the response of the oldest waiting operation."""
    if c.requests.operations.first != NULL:
        c.output.until = (<operation_t*>c.requests.operations.first.owner).begin


cdef void operation_list(operation_t* op, int64_t begin) noexcept nogil:
    """Hold back all responses of the connection from position `begin` on."""
    cdef link_t* before = NULL
    cdef link_t* last = op.conn.requests.operations.last
    op.begin = begin
    while last != NULL and (<operation_t*>last.owner).begin > begin:
        before = last            # a Fetch waits at once, a Produce before it only from the turn's end on
        last = last.previous
    chain_insert(&op.conn.requests.operations, before, &op.listed, op)
    hold_back(op.conn)


cdef int operation_keep_frame(operation_t* op, const uint8_t* frame, int64_t n) noexcept nogil:
    """Replace its request by a copy of this frame; -1 without memory."""
    cdef uint8_t* copy = <uint8_t*>malloc(n)
    if copy == NULL:
        return -1
    memcpy(copy, frame, n)
    conn_hold(op.conn, n - op.fetch.frame_bytes)
    free(op.fetch.frame)
    op.fetch.frame = copy
    op.fetch.frame_bytes = n
    return 0


cdef void operation_unwatch(operation_t* op) noexcept nogil:
    """Remove all watches, and release their partitions."""
    cdef int32_t i
    for i in range(op.fetch.parked_count):
        partition_unwatch(&op.fetch.parked[i].watch)
        partition_drop(op.fetch.parked[i].held)
    free(op.fetch.parked)
    op.fetch.parked = NULL
    op.fetch.parked_count = 0
    for i in range(op.produce.awaited_count):
        partition_unwatch(&op.produce.awaited[i].watch)


cdef void operation_leave_session(operation_t* op) noexcept nogil:
    """Release the session of a Fetch that waits no longer."""
    if op.fetch.session != NULL:
        session_leave(op.fetch.session, &op.fetch.waiter)
        session_drop(op.fetch.session)
        op.fetch.session = NULL


cdef void operation_tell(operation_t* op) noexcept nogil:
    """Have its reactor handle it. From any thread, under the inbox's lock."""
    if chain_append(&op.inbox.told, &op.told, op) and not op.inbox.rung:
        op.inbox.rung = 1
        ring(op.inbox.bell)


cdef void operation_look(operation_t* op) noexcept nogil:
    """Have its reactor handle it in its next turn."""
    pthread_mutex_lock(&op.inbox.lock)
    operation_tell(op)
    pthread_mutex_unlock(&op.inbox.lock)


cdef void operation_answered(operation_t* op, int64_t n) noexcept nogil:
    """Move later operations by n bytes, which were put into this one's slot."""
    cdef link_t* link = op.listed.next
    while link != NULL:
        (<operation_t*>link.owner).begin += n
        link = link.next


cdef void leave_conn(timers_t* timers, operation_t* op) noexcept nogil:
    """Release what the operation holds for its connection, which does not wait for it any more."""
    cdef conn_t* c = op.conn
    chain_remove(&op.listed)
    hold_back(c)
    timer_stop(timers, &op.timer)
    operation_unwatch(op)
    if op.fetch.slot != NULL:
        op.fetch.slot.is_slot = 0
    operation_leave_session(op)
    if op.fetch.frame != NULL:
        conn_hold(c, -op.fetch.frame_bytes)
        free(op.fetch.frame)
        op.fetch.frame = NULL
    if c.requests.away == op:
        c.requests.away = NULL
    if c.requests.fetching == op:
        c.requests.fetching = NULL
        c.requests.behind = 0
    op.conn = NULL


cdef void operation_end(timers_t* timers, operation_t* op) noexcept nogil:
    """End an operation; its connection then has work to do. It is freed here, or by the call after its last thread has
    notified it."""
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
    for i in range(op.produce.awaited_count):
        if op.produce.awaited[i].sync.log != NULL:
            sync_leave(&op.produce.awaited[i].sync)
        partition_drop(op.produce.awaited[i].partition)
    op.inbox.operations -= 1
    free(op)


cdef void operations_end(timers_t* timers, conn_t* c) noexcept nogil:
    """End all operations of a connection that is closed; they are not answered."""
    while c.requests.operations.first != NULL:
        operation_end(timers, <operation_t*>c.requests.operations.first.owner)
