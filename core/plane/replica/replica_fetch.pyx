"""A follower's turns: a connection to a leader is served like those of clients, with the roles reversed.

    asks ──> awaits ──the response is complete──> appends its records ──> asks, in the same turn
             without partitions: it sends no Fetch until Python adds one

If a topic wants its records on disk (flush.messages), the Fetch that reports them as replicated waits for the disk. A
partition whose disk takes too long is left to threads, and the others go on. The leader holds a Fetch without records
until there are some or max_wait_ms is over, so there is no timer here. Records are appended from where they were
received: the reactor's arena or, if the response is larger than one read, the connection's own buffer, which grows with
the bytes received.

A malformed response closes the connection, before anything of it is appended. An error of one partition is reported to
Python and removes that partition, the others go on; so does a slow disk (slow_disk.pxd). Data for a partition
that the request did not name, or that was removed meanwhile, is ignored.
"""

from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i32, peek_i64, poke_i64
from pybroker.core.base.chain cimport chain_append, link_t
from pybroker.core.base.clock cimport wall_ms
from pybroker.core.base.counters cimport tally
from pybroker.core.base.cursor cimport OK, load_be32, write_i32, write_i64, write_i8, writer_init, writer_t
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE
from pybroker.core.base.frame cimport SIZE_BYTES
from pybroker.core.base.protocol cimport FETCH_VERSION_TOPIC_ID
from pybroker.core.partition.append_replica cimport NOT_ASKED, partition_append_replica, replicated_t
from pybroker.core.plane.connection.conn cimport (
    OWN_KEPT, conn_flush, conn_forget_own, conn_grow_own, conn_keep, conn_recv, conn_t,
)
from pybroker.core.plane.connection.mailbox cimport FETCHER, mailbox_put
from pybroker.core.plane.limits.quota_bucket cimport bucket_record, bucket_wait
from pybroker.core.plane.replica.replica_fetch_wire cimport (
    NO_MORE, answer_t, brought_t, replica_answer_next, replica_answer_open, replica_fetch_write,
)
from pybroker.core.plane.replica.replica_fetcher cimport (
    fetched_t, replica_fetcher_find, replica_fetcher_flush, replica_fetcher_forget_all, replica_fetcher_forget_session,
    replica_fetcher_let_go, replica_fetcher_t, replica_fetcher_take_orders,
)
from pybroker.core.plane.thread.reactor cimport ARENA_BYTES, READ_BYTES, reactor_t
from pybroker.core.storage.log.log cimport log_sync_due, log_view, view_t
from pybroker.core.storage.log.slow_disk cimport SLOW_MS, slow_is, slow_note

cdef enum:
    ARENA_LEAST = 64 << 10       # with less room, responses are read into the connection's own buffer
    READS_MAX = 16               # in one turn
    LOOK_MS = 1000               # between two checks for changed log starts
    NO_PARTITION = -1
    SESSION_EPOCH_MAX = 0x7FFFFFFF
    REST_MS_MAX = 1000           # of throttled partitions, before the next check, as the rate may change,
    REST_MS_MIN = 150            # and the least: a leader with the same rate sends small pieces, each when it may


cdef const char* GONE = ""       # the leader closed the connection, or Python did
cdef const char* MALFORMED = "the leader sent a malformed response"
cdef const char* UNASKED = "the leader sent a response that is unrequested or too large"
cdef const char* REFUSED = "the leader refused the Fetch request"
cdef const char* SILENT = "the leader did not answer a Fetch in time"
cdef const char* NO_MEMORY = "no memory for the leader's response"


cdef inline replica_fetcher_t* fetcher_of(const conn_t* c) noexcept nogil:
    return <replica_fetcher_t*>c.fetcher


# -- events for Python -------------------------------------------------------------------------------------------------

cdef bint tell(
    reactor_t* r, const conn_t* c, int event, int64_t id, int32_t code, int32_t epoch, int64_t offset) noexcept nogil:
    """Report an event of a partition to Python; False without memory for it."""
    cdef uint8_t letter[EVENT_BYTES]
    cdef writer_t w
    writer_init(&w, letter, EVENT_BYTES)
    write_i8(&w, <signed char>event)
    write_i32(&w, code)
    write_i64(&w, id)
    write_i32(&w, epoch)
    write_i64(&w, offset)
    return mailbox_put(&r.plane.mailbox, FETCHER, c.id, NULL, letter, EVENT_BYTES) == 0


cdef bint take_out(
    reactor_t* r, const conn_t* c, fetched_t* q, int event, int32_t code, int32_t epoch, int64_t offset) noexcept nogil:
    """Stop fetching a partition, and report the reason to Python."""
    cdef bint told = tell(r, c, event, q.id, code, epoch, offset)
    replica_fetcher_let_go(fetcher_of(c), q)
    return told


# -- a response --------------------------------------------------------------------------------------------------------

cdef int append(fetched_t* q, const brought_t* b, int64_t now_ms) noexcept nogil:
    cdef replicated_t sent
    sent.data = b.records
    sent.n = max(b.records_bytes, <int32_t>0)
    sent.leader_epoch = q.leader_epoch
    sent.offset = q.asked_end
    sent.high_watermark = b.high_watermark
    sent.gone = &q.gone
    return partition_append_replica(q.partition, &sent, now_ms)


cdef bint take_brought(reactor_t* r, conn_t* c, const brought_t* b, bint alone, int64_t now_ms) noexcept nogil:
    """Handle the response for one partition; False if an event cannot be reported to Python."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef fetched_t* q = replica_fetcher_find(f, &b.topic, b.index)
    cdef view_t v
    cdef int status
    if q == NULL or not q.is_asked or load_i32(&q.gone):
        return True
    if f.awaiting > 0 and q.asked_in == f.correlation:
        return True  # this is the response to the request before, which had another epoch or fewer records of it
    if b.error != 0:
        return take_out(r, c, q, FAILED, b.error, -1, -1)
    if b.diverges:
        return take_out(r, c, q, DIVERGED, 0, b.diverging_epoch, b.diverging_end)
    if b.records_bytes > 0 and slow_is(&q.partition.log.slow_appends):
        return take_out(r, c, q, SLOW, 0, -1, -1)
    status = append(q, b, now_ms)
    if status == NOT_ASKED:
        chain_append(&f.changed, &q.changed, q)
        return True
    if status != 0:              # with a full disk: the leader's log start may allow to delete records
        return take_out(r, c, q, FAILED, status, -1, b.log_start)
    # An in-sync replica has all records up to the high watermark; Kafka counts what it copies as well (KIP-73).
    if (
        b.records_bytes > 0 and r.plane.follower_throttle != NULL and load_i32(&q.partition.follower_throttled)
        and q.asked_end < b.high_watermark
    ):
        bucket_record(r.plane.follower_throttle, b.records_bytes, r.now_ms)
    poke_i64(&q.leader_end, b.high_watermark)
    log_view(q.partition.log, &v)
    if v.log_end != q.asked_end:
        chain_append(&f.changed, &q.changed, q)
    elif b.records_bytes > 0 and alone:
        return take_out(r, c, q, FAILED, MESSAGE_TOO_LARGE, -1, -1)  # no complete batch, as in every later response
    if b.log_start > max(v.log_start, q.told_start):
        q.told_start = b.log_start
        return tell(r, c, LOG_START, q.id, 0, -1, b.log_start)
    return True


cdef int count_brought(answer_t a, int32_t* with_records) noexcept nogil:
    """Check a response to its end, before anything of it is used: OK, SHORT or BAD."""
    cdef brought_t b
    cdef int status = OK
    with_records[0] = 0
    while status == OK:
        status = replica_answer_next(&a, &b)
        with_records[0] += status == OK and b.records_bytes > 0
    return OK if status == NO_MORE else status


cdef void end_session(replica_fetcher_t* f) noexcept nogil:
    """Make the next request a full one. The response to one in flight is ignored."""
    replica_fetcher_forget_session(f)
    f.is_skipping = f.awaiting


cdef bint keep_session(replica_fetcher_t* f, int32_t session_id) noexcept nogil:
    """Follow the session of the response; False if that is not the session of the request."""
    if not f.asked_full and session_id != f.session_id:
        end_session(f)
        return False
    if f.asked_full:
        f.session_id = session_id
        f.session_epoch = 0 if session_id == 0 else 1
        f.keeps_none = session_id == 0
    if session_id == 0:
        replica_fetcher_forget_all(f)
    return True


cdef const char* take_refusal(reactor_t* r, conn_t* c, int32_t code) noexcept nogil:
    """Handle an error of the whole request: if the leader does not know the session, send a full request."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    if not f.asked_full:
        end_session(f)
        return NULL
    tell(r, c, FAILED, NO_PARTITION, code, -1, -1)
    return REFUSED


cdef const char* take_answer(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Append the records of a response; the reason to close the connection, or NULL."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef answer_t a
    cdef brought_t b
    cdef int32_t with_records
    cdef int64_t now_ms
    f.awaiting -= 1
    if replica_answer_open(&a, frame, n, f.version >= FETCH_VERSION_TOPIC_ID) != OK:
        return MALFORMED
    if a.correlation != ((f.correlation - f.awaiting) & 0x7FFFFFFF):
        return MALFORMED
    if f.is_skipping:
        f.is_skipping = 0
        return NULL
    if a.error != 0:
        return take_refusal(r, c, a.error)
    if count_brought(a, &with_records) != OK:
        return MALFORMED
    if not keep_session(f, a.session_id):
        return NULL
    now_ms = wall_ms() if with_records > 0 else 0
    while replica_answer_next(&a, &b) == OK:
        if not take_brought(r, c, &b, with_records == 1, now_ms):
            return NO_MEMORY
    return NULL


# -- receiving ---------------------------------------------------------------------------------------------------------

cdef int64_t announced(reactor_t* r, const replica_fetcher_t* f, const uint8_t* data, int64_t n) noexcept nogil:
    """The size of the response that begins here, with its length field; 0: not known yet; -1: unrequested or too large.

    The first batch of a response is always complete, so it may exceed the requested size by a frame."""
    cdef int64_t length
    if n == 0:
        return 0
    if not f.awaiting:
        return -1
    if n < 4:
        return 0
    length = load_be32(data)
    return -1 if length < 0 or length > f.response_bytes_max + r.plane.frame_bytes_max else 4 + length


cdef const char* take_frames(reactor_t* r, conn_t* c, const uint8_t* data, int64_t n, int64_t* used) noexcept nogil:
    """Handle the complete responses at the start of `data`; the bytes used up, and the reason to close the connection,
    or NULL."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef int64_t size
    cdef const char* why = NULL
    used[0] = 0
    while why == NULL:
        size = announced(r, f, data + used[0], n - used[0])
        if size < 0:
            return UNASKED
        if size == 0 or n - used[0] < size:
            return NULL
        why = take_answer(r, c, data + used[0] + SIZE_BYTES, size - SIZE_BYTES)
        used[0] += size
    return why


cdef const char* read_own(reactor_t* r, conn_t* c, int64_t* got) noexcept nogil:
    """Read into the connection's own buffer, and handle complete responses in it."""
    cdef int64_t need = OWN_KEPT, used, size
    cdef const char* why
    if c.input.used >= 4:
        need = 4 + <int64_t>load_be32(c.input.own)  # the size is valid: take_frames checked it
    need = max(need, c.input.used + 1)
    # Memory is allocated for received bytes, not for the announced size: the buffer doubles.
    if conn_grow_own(c, min(need, max(2 * c.input.used, <int64_t>OWN_KEPT))) < 0:
        return NO_MEMORY
    size = c.input.capacity - c.input.used
    got[0] = conn_recv(c, c.input.own + c.input.used, size)
    if got[0] <= 0:
        return NULL
    c.input.used += got[0]
    why = take_frames(r, c, c.input.own, c.input.used, &used)
    conn_forget_own(c, used)
    return why


cdef const char* read_arena(reactor_t* r, conn_t* c, int64_t* got) noexcept nogil:
    """Read into the rest of the arena, and handle complete responses; the remainder moves to the connection's
    buffer."""
    cdef uint8_t* at = r.arena + r.arena_used
    cdef int64_t used, room = min(<int64_t>READ_BYTES, ARENA_BYTES - r.arena_used)
    cdef const char* why
    got[0] = conn_recv(c, at, room)
    if got[0] <= 0:
        return NULL
    why = take_frames(r, c, at, got[0], &used)
    if why == NULL and used < got[0] and conn_keep(c, at + used, got[0] - used) < 0:
        return NO_MEMORY
    return why


cdef const char* receive(reactor_t* r, conn_t* c) noexcept nogil:
    """Read once; the reason to close the connection, or NULL."""
    cdef int64_t got = 0
    cdef const char* why
    if c.input.used > 0 or c.input.capacity >= OWN_KEPT or ARENA_BYTES - r.arena_used < ARENA_LEAST:
        why = read_own(r, c, &got)
    else:
        why = read_arena(r, c, &got)
    if why != NULL:
        return why
    if got > 0:
        c.input.received += got
        tally(&r.books.bytes_in, got)
        tally(&fetcher_of(c).bytes_in, got)
    elif got == -EAGAIN:
        c.input.readable = 0
    elif got != -EINTR:
        return GONE
    return NULL


# -- requests ----------------------------------------------------------------------------------------------------------

cdef void look_at_all(replica_fetcher_t* f, bint full) noexcept nogil:
    """Put all partitions into the next request, or those whose logs changed since the leader's session was updated."""
    cdef link_t* link = f.listed.first
    cdef fetched_t* q
    cdef view_t v
    while link != NULL:
        q = <fetched_t*>link.owner
        log_view(q.partition.log, &v)
        if full or v.log_end != q.asked_end or v.log_start != q.asked_start:
            chain_append(&f.changed, &q.changed, q)
        link = link.next


cdef bint is_flushing(reactor_t* r, conn_t* c) noexcept nogil:
    """True if the next request must wait for the disk: in some topics only durable records may be reported as
    replicated."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef link_t* link = f.changed.first
    cdef fetched_t* q
    cdef int64_t end
    while link != NULL:
        q = <fetched_t*>link.owner
        link = link.next
        end = log_sync_due(q.partition.log)
        if end >= 0 and q.sync.status != 0:
            take_out(r, c, q, FAILED, KAFKA_STORAGE_ERROR, -1, -1)
        elif end >= 0 and q.sync.log == NULL:
            replica_fetcher_flush(f, q, end)
    c.requests.behind = f.flushing > 0
    return c.requests.behind


cdef bint replica_fetch_hangs(reactor_t* r, conn_t* c) noexcept nogil:
    """Remove the partitions whose disk has held up the connection for too long; True if the connection must be served.

    Threads, which may wait, continue with them."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef link_t* link = f.changed.first
    cdef fetched_t* q
    if f.flushing == 0 or r.now_ms - f.flushing_ns // 1000000 < SLOW_MS:
        return False
    while link != NULL:
        q = <fetched_t*>link.owner
        link = link.next
        if q.sync.log != NULL:
            slow_note(&q.partition.log.slow_appends, f.flushing_ns)
            take_out(r, c, q, SLOW, 0, -1, -1)
    return True


cdef inline bint lags(const fetched_t* q) noexcept nogil:
    """True if the partition is known to be behind. Until a new leader has reported its high watermark, it may be in
    sync."""
    cdef view_t v
    log_view(q.partition.log, &v)
    return v.log_end < peek_i64(&q.leader_end)


cdef void rest(reactor_t* r, conn_t* c) noexcept nogil:
    """Remove throttled partitions that are behind, if too much of such partitions was copied; they are added again
    later."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef link_t* link = f.listed.first
    cdef int64_t rest_ms = 0
    cdef fetched_t* q
    if r.plane.follower_throttle != NULL and not f.awaiting:
        rest_ms = min(bucket_wait(r.plane.follower_throttle, r.now_ms), <int64_t>REST_MS_MAX)
    while rest_ms >= REST_MS_MIN and link != NULL:
        q = <fetched_t*>link.owner
        link = link.next
        if load_i32(&q.partition.follower_throttled) and lags(q):
            take_out(r, c, q, THROTTLED, 0, -1, rest_ms)


cdef inline bint is_in_session(const replica_fetcher_t* f) noexcept nogil:
    """True if the next request can belong to the leader's session."""
    return f.session_id != 0 and (f.nameless > 0) == (f.version < FETCH_VERSION_TOPIC_ID)


cdef const char* ask(reactor_t* r, conn_t* c) noexcept nogil:
    """Send the next request, unless one is not answered yet, or there is nothing to fetch.

    While the leader holds a request, another may follow for partitions that were added since: the leader then answers
    the first at once, and the new partitions need not wait. After a full request there is no second one; so the leader
    answers a full one at once."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef int64_t sent = c.output.sent
    if not replica_fetcher_take_orders(f):  # never ask for a removed partition: to its leader a Fetch is a proof
        return GONE
    rest(r, c)
    if f.listed.first == NULL and f.forgotten.first != NULL and not f.awaiting:
        end_session(f)           # otherwise forgotten partitions would be held until the next request
        replica_fetcher_forget_all(f)
    if f.listed.first == NULL or f.awaiting > 1:
        return NULL
    if f.awaiting and (f.asked_full or not f.has_new or not is_in_session(f)):
        return NULL
    if not is_in_session(f):
        replica_fetcher_forget_session(f)
        replica_fetcher_forget_all(f)
        look_at_all(f, True)
    elif r.now_ms - f.looked_ms >= LOOK_MS:
        look_at_all(f, False)
        f.looked_ms = r.now_ms
    if is_flushing(r, c) or f.listed.first == NULL:
        return NULL
    f.correlation = (f.correlation + 1) & 0x7FFFFFFF
    if replica_fetch_write(f, c) < 0:
        return NO_MEMORY
    f.asked_full = f.session_id == 0
    if f.session_id != 0:
        f.session_epoch = 1 if f.session_epoch == SESSION_EPOCH_MAX else f.session_epoch + 1
    f.awaiting += 1
    f.has_new = 0
    f.asked_ms = r.now_ms
    tally(&f.requests, 1)
    if conn_flush(c) < 0:        # now: a client's acks=all may wait for it, and the turn appends before it answers
        return GONE
    tally(&r.books.bytes_out, c.output.sent - sent)
    return NULL


cdef const char* replica_fetch_serve(reactor_t* r, conn_t* c) noexcept nogil:
    """Serve a leader's connection in a turn; the reason to close it, empty if the leader or Python closed it, or
    NULL."""
    cdef const char* why = NULL
    cdef int reads = 0
    if not replica_fetcher_take_orders(fetcher_of(c)):
        return GONE
    if fetcher_of(c).flushing > 0:
        return NULL
    c.requests.behind = 0
    while why == NULL and c.input.readable and not c.ending.close_after and reads < READS_MAX:
        reads += 1
        why = receive(r, c)
    return why if why != NULL or c.ending.close_after else ask(r, c)


cdef const char* replica_fetch_silence(const conn_t* c, int64_t now_ms) noexcept nogil:
    """The reason to close a connection whose leader does not answer any more, or NULL."""
    cdef const replica_fetcher_t* f = fetcher_of(c)
    if not f.awaiting or c.requests.behind:
        return NULL
    return SILENT if now_ms - max(f.asked_ms, c.active_ms) > f.answer_ms_max else NULL
