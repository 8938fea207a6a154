# One client's connection: its input, its output, and its state.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.base.counters cimport KINDS
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.base.tls cimport tls_holds, tls_t, tls_unsent
from pybroker.core.plane.limits.memory_pool cimport address_t, pool_full, pool_hold, pool_repay, pool_t
from pybroker.core.plane.limits.quotas cimport quotas_t
from pybroker.core.plane.limits.rights cimport given_t, rights_t
from pybroker.core.storage.background.cold_reads cimport warm_t
from pybroker.core.storage.log.log cimport found_t, log_t

cdef enum:
    CHUNK_BYTES = 4096 - 48      # of responses; a larger one gets a chunk of its own
    OWN_BYTES_MIN = 4096
    OWN_KEPT = 64 << 10          # a larger buffer is read into directly, and freed when the connection is idle
    FLUSH_BYTES_MAX = 128 << 10  # sent for one connection in one turn; the rest waits for the next turn

cdef enum state_t:
    OPEN                         # its next frame may be executed
    AWAY                         # a request is with Python; its reply comes through the inbox
    CLOSING                      # the socket is closed; freed at the end of the turn

cdef struct chunk_t:             # a piece of output: bytes, or a range of a file
    chunk_t* next
    log_t* log                   # held; NULL: bytes
    found_t found
    int64_t generation           # of the log when the range was read
    int32_t used
    int32_t sent
    int32_t capacity
    int32_t is_slot              # the response of a waiting request goes after this; nothing after it is sent
    uint8_t* data                # after the struct

cdef struct behind_t:            # the chunks after a slot that is being filled
    chunk_t* first
    chunk_t* last

cdef struct input_t:             # received, not executed yet
    int32_t readable             # the socket may have more bytes
    int32_t ended                # the peer sends nothing more: after a short read, read again
    uint8_t* own                 # bytes of frames that are not executed yet
    int64_t capacity             # of `own`
    int64_t used
    int64_t received             # since the connection was accepted

cdef struct output_t:            # to be sent
    int32_t writable
    chunk_t* first
    chunk_t* last
    int64_t queued               # bytes not sent yet
    int64_t sent                 # bytes since the connection was accepted
    int64_t until                # send up to here: the start of the oldest waiting response, if one waits
    int64_t chunk_bytes          # in memory, before they are encrypted,
    int64_t held                 # and how much of it, with encrypted bytes, is accounted for
    int32_t unsent[<int>KINDS]   # responses, by kind, that are complete, but not all sent,
    int64_t unsent_ns            # and since when the first of them; 0: since this turn

cdef struct requests_t:          # not finished yet; operation.pxd has their types
    chain_t operations           # those whose responses wait, in the order of their responses
    void* fetching               # operation_t: the waiting Fetch; the next Fetch waits until it is answered
    int32_t behind               # the next frame is such a Fetch
    void* away                   # AWAY: the operation of the request; NULL: the request had not waited here
    int64_t away_bytes           # AWAY: of the request that is with Python
    warm_t warm

cdef struct ending_t:            # why and when the connection is closed
    int32_t close_after          # close once the output is sent
    int32_t lingers  # and when the mute is over, or the peer has closed: so the peer can read the error response
    const char* refused          # why nothing more is read: it ends as with close_after; NULL: it goes on
    int64_t taken                # bytes that the peer had read at the last check, while the plane finishes,
    int64_t taken_ms             # and since when it has read no more; 0: nothing was outstanding

cdef struct login_t:             # the rights of the client
    int64_t ends_ms              # from then on all requests go to Python; 0: never
    rights_t* rights             # NULL: no rights are checked

cdef struct limits_t:            # the quotas of the client
    quotas_t* quotas             # the client's buckets; NULL: not known
    int64_t throttle_ms          # throttle_time_ms of the last response; the connection is then muted for so long
    int64_t muted_until_ms       # nothing is read or executed until then; 0: not muted

cdef struct memory_t:            # memory held, and progress
    pool_t* pool                 # where it is accounted for,
    address_t* address           # and for which address
    int64_t loan                 # lent by the pool beyond its limit for the request being received; and since when
    int64_t loan_ms
    int64_t wanted               # in line: bytes that the request needs; 0: it waits for Python
    int64_t mark                 # bytes received and sent at the last check while memory is short
    int64_t mark_ms              # 0: not checked yet for this request

cdef struct conn_t:              # fields that each turn touches come first
    link_t listed                # in the chains of its reactor; see reactor_t
    link_t ready
    link_t large
    link_t waiting
    int64_t id                   # the id for Python; never used again
    int32_t fd
    int32_t state
    int32_t listener             # that accepted it, by Python's number
    int32_t is_follower          # the last Fetch was a follower's
    void* fetcher                # replica_fetcher_t: the peer is a leader that we fetch from; NULL: a client
    tls_t* tls                   # NULL: not encrypted
    int64_t active_ms
    input_t input
    output_t output
    requests_t requests
    ending_t ending
    login_t login
    limits_t limits
    memory_t memory
    inbox_t* inbox               # of its reactor
    link_t muted

cdef struct note_t:              # from another thread to a reactor: a new connection, or a reply
    note_t* next
    conn_t* conn
    chunk_t* first               # the response; NULL with `close` unset: no response
    chunk_t* last
    int64_t bytes
    given_t* given               # rights of the client that come with it; NULL: none
    int64_t login_ends_ms        # a new end of the login; -1: unchanged
    quotas_t* quotas             # the client's buckets from now on; NULL: unchanged
    int64_t mute_ms              # for how long the connection is then muted
    int32_t is_new
    int32_t close                # close the connection after sending all output

cdef struct inbox_t:             # what other threads leave for a reactor
    int32_t bell                 # an eventfd that ends the reactor's wait
    pthread_mutex_t lock         # guards all below
    note_t* notes
    note_t* notes_last
    chain_t told                 # operations with news
    chain_t fetchers             # connections to leaders with changes by Python
    chain_t flushed              # followed partitions whose log is on disk, or failed
    int32_t rung                 # the bell was rung for the contents, or need not be
    int32_t is_called            # the plane has new instructions
    int32_t operations  # number of operations and followers' flushes that exist, finished or not; the reactor's own

cdef chunk_t* chunk_new(int64_t room) noexcept nogil
cdef chunk_t* chunk_drop(chunk_t* k) noexcept nogil
cdef uint8_t* conn_room(conn_t* c, int64_t n) noexcept nogil
cdef void conn_wrote(conn_t* c, int64_t n) noexcept nogil
cdef chunk_t* conn_add_slot(conn_t* c) noexcept nogil
cdef void conn_open_slot(conn_t* c, chunk_t* slot, behind_t* behind) noexcept nogil
cdef void conn_close_slot(conn_t* c, const behind_t* behind) noexcept nogil
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
    """The position in the connection's output at which the next response begins."""
    return c.output.sent + c.output.queued


cdef inline int64_t conn_sendable(const conn_t* c) noexcept nogil:
    """The bytes of output that may be sent: those before the response of the oldest waiting operation."""
    return c.output.queued if c.requests.operations.first == NULL else c.output.until - c.output.sent


cdef inline bint conn_is_sent(const conn_t* c) noexcept nogil:
    """True if all output was handed to the kernel."""
    return c.output.first == NULL and (c.tls == NULL or tls_unsent(c.tls) == 0)


cdef inline bint conn_is_owed(const conn_t* c) noexcept nogil:
    """True if there is output that the peer has not taken yet; waiting responses do not count."""
    return conn_sendable(c) > 0 or (c.tls != NULL and tls_unsent(c.tls) > 0)


cdef inline void conn_hold(conn_t* c, int64_t n) noexcept nogil:
    """Account for n more bytes of memory, or fewer if n is negative."""
    pool_hold(c.memory.pool, c.memory.address, n)


cdef inline int64_t conn_holds(const conn_t* c) noexcept nogil:
    return c.input.capacity + c.output.held


cdef inline bint conn_short(conn_t* c) noexcept nogil:
    """True if the connection has to wait for memory before it receives more."""
    return c.memory.loan == 0 and pool_full(c.memory.pool)


cdef inline void conn_repay(conn_t* c) noexcept nogil:
    """Repay the loan of a request that has arrived, or never will."""
    if c.memory.loan != 0:
        pool_repay(c.memory.pool, c.memory.loan)
        c.memory.loan = 0


cdef inline void conn_account(conn_t* c) noexcept nogil:
    """Account for output that the client has not read."""
    cdef int64_t bytes = c.output.chunk_bytes + (tls_holds(c.tls) if c.tls != NULL else 0)
    if bytes != c.output.held:
        conn_hold(c, bytes - c.output.held)
        c.output.held = bytes
