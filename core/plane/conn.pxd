# One client's connection: what came in, what goes out, and whether it waits.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.base.tls cimport tls_holds, tls_t, tls_unsent
from pybroker.core.partition.partition cimport partition_t, watch_t
from pybroker.core.plane.fetch_session cimport session_t, waiter_t
from pybroker.core.plane.memory_pool cimport address_t, pool_full, pool_hold, pool_repay, pool_t
from pybroker.core.plane.quotas cimport quotas_t
from pybroker.core.plane.rights cimport given_t, rights_t
from pybroker.core.storage.cold_reads cimport warm_t
from pybroker.core.storage.group_commit cimport sync_t
from pybroker.core.storage.log cimport found_t, log_t

cdef enum:
    CHUNK_BYTES = 4096 - 48      # of answers; a larger one gets a chunk of its own
    OWN_BYTES_MIN = 4096
    OWN_KEPT = 64 << 10          # a larger buffer is read into directly, and given back when the connection rests
    FLUSH_BYTES_MAX = 128 << 10  # sent for one connection in one turn; the rest waits for its next

cdef enum state_t:
    OPEN                         # its next frame may be executed
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
    int32_t is_slot              # an answer that waits goes behind this; nothing behind it is sent
    uint8_t* data                # behind the struct

cdef struct parked_t:            # a partition that may bring what a fetch waits for
    watch_t watch
    partition_t* held

cdef struct awaited_t:           # a partition of a Produce whose answer waits for its log, or for its replicas
    sync_t sync                  # its log is NULL: the disk is not waited for
    watch_t watch
    partition_t* partition       # held
    int64_t end                  # where the high watermark must come to; -1: replicas are waited for no longer
    int64_t generation           # of its log: as long as it is that one, what was appended lies there
    int32_t error                # that its answer tells
    uint8_t* answer              # in the output of the connection

cdef struct operation_t:         # a request whose answer waits, and with it those behind it
    link_t listed                # in its connection's, in the order of their answers
    link_t due                   # in its reactor's: looked at in this turn
    link_t told                  # in the inbox
    conn_t* conn                 # NULL: it is over, answered or its connection went
    inbox_t* inbox               # of its reactor
    int32_t refs                 # of others, each of whom tells it once; under the inbox's lock, as `told`
    int32_t heap_index           # among its reactor's timers; -1 not there
    int64_t deadline_ms          # from then on it is answered with what there is
    int64_t begin                # of its answer in the output of its connection, in bytes since that came
    int64_t began_ns
    chunk_t* slot                # Fetch: behind this its answer goes; NULL: a Produce, whose answer is there
    uint8_t* frame               # Fetch: its bytes without the size, to be executed again
    int64_t frame_bytes
    int64_t wait_at              # in it: how long it may wait; and what stood there
    int32_t wait_ms
    parked_t* parked
    int32_t parked_count
    int32_t reading              # a reader will tell it
    int32_t warmed               # by that reader, in the inbox
    int32_t is_warm              # what it wants was read: it looks no more whether that is cold
    int32_t is_declined          # Python gets it once it has no other request of the connection
    int32_t is_replica           # a follower's Fetch:
    int32_t is_hurried           # its follower asks for something else, so it waits no longer
    int32_t is_unnoted           # how far its follower is, is to be noted yet
    session_t* session           # of an incremental fetch, held
    waiter_t waiter              # there
    int16_t version              # Produce: of its answer
    int32_t awaited_count
    awaited_t* awaited           # behind the struct

cdef struct conn_t:
    link_t listed                # in the chains of its reactor, which see
    link_t ready
    link_t large
    link_t waiting
    inbox_t* inbox               # of its reactor
    int64_t id                   # that Python knows it by; never used again
    int32_t listener             # that it came by, as Python numbers them
    int64_t active_ms
    int64_t login_ends_ms        # from then on all that it asks is Python's; 0: its client is there for good
    int32_t fd
    int32_t state
    int32_t readable             # the socket may have more than was read
    int32_t writable
    int32_t close_after          # close once the output is sent
    int32_t lingers              # and once it is muted no more, or its peer has ended: its peer has time to read why
    const char* refused          # why nothing more of it is read: it ends as with close_after; NULL: it goes on
    int32_t ended                # its peer sends nothing more: a short read is not the last
    int64_t bytes_out            # sent since it came
    int64_t taken                # of them by its peer, when it was last looked at while the plane finishes,
    int64_t taken_ms             # and since when it is no more; 0: it was not owed anything
    pool_t* pool                 # what it holds is accounted for there,
    address_t* address           # and there
    int64_t loan                 # of the pool beyond its limit, for the request that it receives; and since when
    int64_t loan_ms
    int64_t wanted               # in line: bytes that its request needs; 0: it waits for Python
    int64_t mark                 # bytes that had come and gone when it was last looked at while memory is short
    int64_t mark_ms              # 0: that was for another request
    int64_t bytes_in             # received since it came
    int64_t chunk_bytes          # of its output in memory, before it is encrypted,
    int64_t chunk_held           # and what of it, and of what is encrypted, is accounted for
    int64_t away_bytes           # AWAY: of the request that is with Python
    uint8_t* own                 # bytes of frames that are not executed yet
    int64_t own_capacity
    int64_t own_used
    int64_t queued_bytes         # output not sent yet
    chunk_t* first
    chunk_t* last
    chain_t operations           # its requests that wait, in the order of their answers
    operation_t* fetching        # the one of them that is a Fetch; the next Fetch waits behind it
    int32_t behind               # its next frame is such a Fetch
    operation_t* away            # AWAY: whose request it is; NULL: one that had not waited
    warm_t warm
    rights_t* rights             # what its client may do; NULL: nobody asks
    tls_t* tls                   # NULL: its bytes are not encrypted
    quotas_t* quotas             # where its client counts; NULL: that is not known
    int64_t throttle_ms          # that its last answer tells; it is muted for so long
    int64_t muted_until_ms       # nothing of it is read or executed until then; 0: it is not muted
    link_t muted
    void* fetcher                # replica_fetcher_t: its peer leads, and we ask; NULL: it is a client
    int32_t is_follower          # its last Fetch was a follower's

cdef struct output_t:            # the chunks behind a slot that is being filled
    chunk_t* first
    chunk_t* last

cdef struct note_t:              # what another thread leaves for a reactor: a new connection, or an answer
    note_t* next
    conn_t* conn
    chunk_t* first               # an answer's output; NULL with `close` unset: there is none to send
    chunk_t* last
    int64_t bytes
    given_t* given               # rights of the connection's client that come with it; NULL: none
    int64_t login_ends_ms        # another end of its login; -1: it is as it was
    quotas_t* quotas             # where its client counts from now on; NULL: as before
    int64_t mute_ms              # how long the connection is muted then
    int32_t is_new
    int32_t close                # close the connection once what is before it was sent

cdef struct inbox_t:             # of a reactor: what other threads leave there
    int32_t bell                 # an eventfd that ends the reactor's wait
    pthread_mutex_t lock         # guards all below
    note_t* notes
    note_t* notes_last
    chain_t told                 # operations that have news
    chain_t fetchers             # connections to leaders for which Python left orders
    chain_t flushed              # of their partitions: those whose log is on disk, or never will be
    int32_t rung                 # the bell was rung for what is in it, or need not be
    int32_t is_called            # the plane says something new
    int32_t operations           # and flushes of followers, that are there, over or not: the reactor's own

cdef chunk_t* chunk_new(int64_t room) noexcept nogil
cdef chunk_t* chunk_drop(chunk_t* k) noexcept nogil
cdef uint8_t* conn_room(conn_t* c, int64_t n) noexcept nogil
cdef void conn_wrote(conn_t* c, int64_t n) noexcept nogil
cdef chunk_t* conn_add_slot(conn_t* c) noexcept nogil
cdef void conn_open_slot(conn_t* c, chunk_t* slot, output_t* behind) noexcept nogil
cdef void conn_close_slot(conn_t* c, const output_t* behind) noexcept nogil
cdef int conn_add_file(conn_t* c, log_t* l, const found_t* found, int64_t generation) noexcept nogil
cdef bint conn_copy_file(
    conn_t* c, log_t* l, const found_t* found, int64_t generation, uint8_t* to) noexcept nogil
cdef int conn_flush(conn_t* c) noexcept nogil
cdef int64_t conn_taken(const conn_t* c) noexcept nogil
cdef ssize_t conn_recv(conn_t* c, uint8_t* into, int64_t n) noexcept nogil
cdef ssize_t conn_peek(conn_t* c, uint8_t* into, int64_t n) noexcept nogil
cdef int conn_keep(conn_t* c, const uint8_t* data, int64_t n) noexcept nogil
cdef int conn_grow_own(conn_t* c, int64_t wanted) noexcept nogil
cdef void conn_free_own(conn_t* c) noexcept nogil
cdef void conn_adopt_chunks(conn_t* c, chunk_t* first, chunk_t* last, int64_t n) noexcept nogil
cdef void conn_forget_own(conn_t* c, int64_t n) noexcept nogil
cdef void conn_empty(conn_t* c) noexcept nogil
cdef void conn_free(conn_t* c) noexcept nogil


cdef inline int64_t conn_position(const conn_t* c) noexcept nogil:
    """Where the next answer begins in its output."""
    return c.bytes_out + c.queued_bytes


cdef inline int64_t conn_sendable(const conn_t* c) noexcept nogil:
    """How much of its output may be sent: no answer before the one that waits for longest."""
    if c.operations.first == NULL:
        return c.queued_bytes
    return (<operation_t*>c.operations.first.owner).begin - c.bytes_out


cdef inline bint conn_is_sent(const conn_t* c) noexcept nogil:
    """Has all of its output left?"""
    return c.first == NULL and (c.tls == NULL or tls_unsent(c.tls) == 0)


cdef inline bint conn_is_owed(const conn_t* c) noexcept nogil:
    """Does its peer have to take something, and not an answer to come?"""
    return conn_sendable(c) > 0 or (c.tls != NULL and tls_unsent(c.tls) > 0)


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
    cdef int64_t bytes = c.chunk_bytes + (tls_holds(c.tls) if c.tls != NULL else 0)
    if bytes != c.chunk_held:
        conn_hold(c, bytes - c.chunk_held)
        c.chunk_held = bytes
