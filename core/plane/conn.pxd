# One client's connection: what came in, what goes out, and whether it waits.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.base.reclamation cimport pthread_mutex_t
from pybroker.core.partition.partition cimport partition_t, watch_t
from pybroker.core.plane.fetch_session cimport session_t
from pybroker.core.plane.memory_pool cimport address_t, pool_full, pool_hold, pool_repay, pool_t
from pybroker.core.storage.cold_reads cimport warm_t
from pybroker.core.storage.group_commit cimport sync_t
from pybroker.core.storage.log cimport found_t, log_t

cdef enum:
    CHUNK_BYTES = 4096 - 48      # of answers; a larger one gets a chunk of its own
    OWN_BYTES_MIN = 4096
    OWN_KEPT = 64 << 10          # a larger buffer is read into directly, and given back when the connection rests
    FLUSH_BYTES_MAX = 4 << 20    # sent for one connection in one turn; the rest waits for its next

cdef enum state_t:
    OPEN                         # its next frame may be executed
    PARKED                       # a fetch waits for records or its deadline
    AWAY                         # a request is with Python; its answer comes by the mailbox
    CLOSING                      # closed for its peer; freed at the end of the turn

cdef struct chunk_t:             # a piece of output: bytes of its own, or a range of a file
    chunk_t* next
    log_t* log                   # held; NULL: bytes
    found_t found
    int64_t generation           # of the log when the range was read
    int32_t used
    int32_t sent
    int32_t capacity
    uint8_t* data                # behind the struct

cdef struct parked_t:            # PARKED: a partition that may bring what the fetch waits for
    watch_t watch
    partition_t* held

cdef struct conn_t:
    link_t listed                # in the chains of its reactor, which see
    link_t ready
    link_t waiting
    link_t woken
    conn_t* next_warmed          # in the inbox, read for
    inbox_t* inbox               # of its reactor
    int64_t id                   # that Python knows it by; never used again
    int64_t active_ms
    int64_t deadline_ms          # PARKED: answer with what there is from then on
    int32_t heap_index           # in the reactor's heap of deadlines; -1 not there
    int32_t fd
    int32_t state
    int32_t readable             # the socket may have more than was read
    int32_t writable
    int32_t syncing              # answers in its output that wait for the disk: nothing is sent or executed until then
    int32_t close_after          # close once the output is sent
    const char* refused          # why nothing more of it is read: it ends as with close_after; NULL: it goes on
    int32_t ended                # its peer sends nothing more: a short read is not the last
    int64_t parked_ns            # PARKED: since then; 0: it is not
    int64_t bytes_out            # sent since it came
    pool_t* pool                 # what it holds is accounted for there,
    address_t* address           # and there
    int64_t loan                 # of the pool beyond its limit, for the request that it receives; and since when
    int64_t loan_ms
    int64_t wanted               # in line: bytes that its request needs; 0: it waits for Python
    int64_t mark                 # bytes that had come and gone when it was last looked at while memory is short
    int64_t mark_ms              # 0: that was for another request
    int64_t bytes_in             # received since it came
    int64_t chunk_bytes          # of its output in memory,
    int64_t chunk_held           # and what of it is accounted for
    int64_t away_bytes           # AWAY: of the request that is with Python
    uint8_t* own                 # bytes of frames that are not executed yet
    int64_t own_capacity
    int64_t own_used
    int64_t queued_bytes         # output not sent yet
    chunk_t* first
    chunk_t* last
    parked_t* parked
    int32_t parked_count
    int32_t reading              # tasks of a reader that will tell it
    int32_t warmed               # the fetch that waits was read for: it looks no more whether it is cold
    warm_t warm
    session_t* session           # PARKED in an incremental fetch: its session, held

cdef struct note_t:              # what another thread leaves for a reactor: a new connection, or an answer
    note_t* next
    conn_t* conn
    chunk_t* first               # an answer's output; NULL with `close` unset: there is none to send
    chunk_t* last
    int64_t bytes
    int32_t is_new
    int32_t close                # close the connection once what is before it was sent

cdef struct inbox_t:             # of a reactor: what other threads leave there
    int32_t bell                 # an eventfd that ends the reactor's wait
    pthread_mutex_t lock         # guards all below
    note_t* notes
    note_t* notes_last
    sync_t* synced               # acknowledgements that need wait for the disk no longer
    conn_t* warmed               # connections that a reader read for
    chain_t woken                # parked connections that were told of an append
    int32_t rung                 # the bell was rung for what is in it

cdef chunk_t* chunk_new(int64_t room) noexcept nogil
cdef chunk_t* chunk_drop(chunk_t* k) noexcept nogil
cdef uint8_t* conn_room(conn_t* c, int64_t n) noexcept nogil
cdef void conn_wrote(conn_t* c, int64_t n) noexcept nogil
cdef int conn_add_file(conn_t* c, log_t* l, const found_t* found, int64_t generation) noexcept nogil
cdef int conn_flush(conn_t* c) noexcept nogil
cdef int conn_keep(conn_t* c, const uint8_t* data, int64_t n) noexcept nogil
cdef int conn_grow_own(conn_t* c, int64_t wanted) noexcept nogil
cdef void conn_free_own(conn_t* c) noexcept nogil
cdef void conn_adopt_chunks(conn_t* c, chunk_t* first, chunk_t* last, int64_t n) noexcept nogil
cdef void conn_forget_own(conn_t* c, int64_t n) noexcept nogil
cdef void conn_unwatch(conn_t* c) noexcept nogil
cdef void conn_leave_session(conn_t* c) noexcept nogil
cdef void conn_empty(conn_t* c) noexcept nogil
cdef void conn_free(conn_t* c) noexcept nogil


cdef inline void conn_hold(conn_t* c, int64_t n) noexcept nogil:
    """It holds n bytes more, or fewer."""
    pool_hold(c.pool, c.address, n)


cdef inline int64_t conn_holds(const conn_t* c) noexcept nogil:
    return c.own_capacity + c.chunk_held


cdef inline bint conn_short(conn_t* c) noexcept nogil:
    """Must it wait before it receives more?"""
    return c.loan == 0 and pool_full(c.pool)


cdef inline void conn_repay(conn_t* c) noexcept nogil:
    """The request that memory was lent for is whole, or never will be."""
    if c.loan != 0:
        pool_repay(c.pool, c.loan)
        c.loan = 0


cdef inline void conn_account(conn_t* c) noexcept nogil:
    """What its client did not read of its answers is held, too."""
    if c.chunk_bytes != c.chunk_held:
        conn_hold(c, c.chunk_bytes - c.chunk_held)
        c.chunk_held = c.chunk_bytes
