"""A follower's turns: a connection to a leader is served as those of clients are, the other way round.

    asks ──> awaits ──the answer is whole──> appends what it brings ──> asks, in the same turn
             nothing is fetched: it asks for nothing until Python adds a partition

Where a topic wants its records on disk (flush.messages), the request that says that we have them waits for the disk;
a partition whose disk takes too long for that is left to threads, and the others go on.
The leader keeps a Fetch that finds nothing until there are records or its time is over, so there is no timer here. What
an answer brings is appended from where it was received: the reactor's arena, or the connection's own buffer where it is
larger than one read. That buffer grows with the bytes that come.

An answer that cannot be read ends the connection, before anything of it is appended. What is wrong with one partition
is told to Python (`tell`) and takes that partition out, the others go on; so does a disk that made somebody wait
(slow_disk.pxd). An answer for a partition that the request did not name, or that left meanwhile, counts for nothing.
"""

from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i32, peek_i64, poke_i64
from pybroker.core.base.chain cimport chain_append, link_t
from pybroker.core.base.clock cimport wall_ms
from pybroker.core.base.counters cimport tally
from pybroker.core.base.cursor cimport (
    OK, load_be32, write_i32, write_i64, write_i8, writer_init, writer_t,
)
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE
from pybroker.core.partition.append_replica cimport NOT_ASKED, partition_append_replica, replicated_t
from pybroker.core.plane.conn cimport (
    OWN_KEPT, conn_flush, conn_forget_own, conn_grow_own, conn_keep, conn_recv, conn_t,
)
from pybroker.core.plane.mailbox cimport FETCHER, mailbox_put
from pybroker.core.plane.quota_bucket cimport bucket_record, bucket_wait
from pybroker.core.plane.reactor cimport ARENA_BYTES, READ_BYTES, reactor_t
from pybroker.core.plane.replica_fetch_wire cimport (
    NO_MORE, answer_t, brought_t, replica_answer_next, replica_answer_open, replica_fetch_write,
)
from pybroker.core.plane.replica_fetcher cimport (
    fetched_t, replica_fetcher_find, replica_fetcher_flush, replica_fetcher_forget_all, replica_fetcher_forget_session,
    replica_fetcher_let_go, replica_fetcher_t, replica_fetcher_take_orders,
)
from pybroker.core.storage.log cimport log_sync_due, log_view, view_t
from pybroker.core.storage.slow_disk cimport SLOW_MS, slow_is, slow_note

cdef enum:
    VERSION_IDS = 13
    ARENA_LEAST = 64 << 10       # with less room there, answers are read into the connection's own buffer
    READS_MAX = 16               # in one turn
    LOOK_MS = 1000               # between two looks at whether logs begin elsewhere
    NO_PARTITION = -1
    SESSION_EPOCH_MAX = 0x7FFFFFFF
    REST_MS_MAX = 1000           # of what is throttled, before it is looked at again: the rate may be another by then


cdef const char* GONE = ""       # its leader closed it, or Python did
cdef const char* MALFORMED = "its leader sent an answer that cannot be read"
cdef const char* UNASKED = "its leader sent bytes that nobody asked for, or too many"
cdef const char* REFUSED = "its leader refuses to be fetched from"
cdef const char* SILENT = "its leader did not answer a Fetch"
cdef const char* NO_MEMORY = "no memory for what its leader sends"


cdef inline replica_fetcher_t* fetcher_of(const conn_t* c) noexcept nogil:
    return <replica_fetcher_t*>c.fetcher


# -- what Python is told -----------------------------------------------------------------------------------------------

cdef bint tell(
    reactor_t* r, const conn_t* c, int event, int64_t id, int32_t code, int32_t epoch, int64_t offset) noexcept nogil:
    """Tell Python of a partition; False without memory for it."""
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
    """Fetch a partition no longer, and tell Python why."""
    cdef bint told = tell(r, c, event, q.id, code, epoch, offset)
    replica_fetcher_let_go(fetcher_of(c), q)
    return told


# -- an answer ---------------------------------------------------------------------------------------------------------

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
    """Take what an answer brings for a partition; False where Python cannot be told of it."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef fetched_t* q = replica_fetcher_find(f, &b.topic, b.index)
    cdef view_t v
    cdef int status
    if q == NULL or not q.is_asked or load_i32(&q.gone):
        return True
    if f.awaiting > 0 and q.asked_in == f.correlation:
        return True              # this is of the request before, which knew it in another epoch, or with less
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
    if status != 0:              # on a full disk the leader's log start may be what makes room
        return take_out(r, c, q, FAILED, status, -1, b.log_start)
    # An in-sync replica has all that is committed; Kafka counts what that one copies as well (KIP-73).
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
        return take_out(r, c, q, FAILED, MESSAGE_TOO_LARGE, -1, -1)  # no whole batch, and none would come again
    if b.log_start > max(v.log_start, q.told_start):
        q.told_start = b.log_start
        return tell(r, c, LOG_START, q.id, 0, -1, b.log_start)
    return True


cdef int count_brought(answer_t a, int32_t* with_records) noexcept nogil:
    """Read an answer to its end, before anything of it is taken: OK, SHORT or BAD."""
    cdef brought_t b
    cdef int status = OK
    with_records[0] = 0
    while status == OK:
        status = replica_answer_next(&a, &b)
        with_records[0] += status == OK and b.records_bytes > 0
    return OK if status == NO_MORE else status


cdef void end_session(replica_fetcher_t* f) noexcept nogil:
    """The next request is a full one. The answer to one that is on its way counts for nothing."""
    replica_fetcher_forget_session(f)
    f.is_skipping = f.awaiting


cdef bint keep_session(replica_fetcher_t* f, int32_t session_id) noexcept nogil:
    """What the answer says of the session that it is in; False if it is not in the one that was asked."""
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
    """The leader refused the request as a whole: it knows no such session, and is asked for all once more."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    if not f.asked_full:
        end_session(f)
        return NULL
    tell(r, c, FAILED, NO_PARTITION, code, -1, -1)
    return REFUSED


cdef const char* take_answer(reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Append what an answer brings; why the connection must end, or NULL."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef answer_t a
    cdef brought_t b
    cdef int32_t with_records
    cdef int64_t now_ms
    f.awaiting -= 1
    if replica_answer_open(&a, frame, n, f.version >= VERSION_IDS) != OK:
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
    """The bytes of the answer that begins here, with its size; 0: not known yet; -1: none is allowed, or none so large.

    The first batch of an answer comes whole, however large it is: so much is allowed beyond what was asked for."""
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
    """Take the whole answers at the start of `data`; the bytes used up, and why the connection must end, or NULL."""
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
        why = take_answer(r, c, data + used[0] + 4, size - 4)
        used[0] += size
    return why


cdef const char* read_own(reactor_t* r, conn_t* c, int64_t* got) noexcept nogil:
    """Read into the connection's own buffer, and take what is whole there."""
    cdef int64_t need = OWN_KEPT, used, size
    cdef const char* why
    if c.own_used >= 4:
        need = 4 + <int64_t>load_be32(c.own)  # which is allowed: it was looked at
    need = max(need, c.own_used + 1)
    # What was announced is believed only as far as it came: the buffer doubles.
    if conn_grow_own(c, min(need, max(2 * c.own_used, <int64_t>OWN_KEPT))) < 0:
        return NO_MEMORY
    size = c.own_capacity - c.own_used
    got[0] = conn_recv(c, c.own + c.own_used, size)
    if got[0] <= 0:
        return NULL
    c.own_used += got[0]
    why = take_frames(r, c, c.own, c.own_used, &used)
    conn_forget_own(c, used)
    return why


cdef const char* read_arena(reactor_t* r, conn_t* c, int64_t* got) noexcept nogil:
    """Read into what is left of the arena, and take what is whole; what is over moves to the connection."""
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
    """Read once; why the connection must end, or NULL."""
    cdef int64_t got = 0
    cdef const char* why
    if c.own_used > 0 or c.own_capacity >= OWN_KEPT or ARENA_BYTES - r.arena_used < ARENA_LEAST:
        why = read_own(r, c, &got)
    else:
        why = read_arena(r, c, &got)
    if why != NULL:
        return why
    if got > 0:
        c.bytes_in += got
        tally(&r.bytes_in, got)
        tally(&fetcher_of(c).bytes_in, got)
    elif got == -EAGAIN:
        c.readable = 0
    elif got != -EINTR:
        return GONE
    return NULL


# -- asking ------------------------------------------------------------------------------------------------------------

cdef void look_at_all(replica_fetcher_t* f, bint full) noexcept nogil:
    """Have the request name all partitions, or those whose logs are not as the leader was told."""
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
    """Must the next request wait for the disk? Where the topic wants it, what it says that we have is durable."""
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
    c.behind = f.flushing > 0
    return c.behind


cdef bint replica_fetch_hangs(reactor_t* r, conn_t* c) noexcept nogil:
    """Take out the partitions whose disk has everything of a connection wait for too long; True if it has to be served.

    Threads go on with them, which may wait."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef link_t* link = f.changed.first
    cdef fetched_t* q
    if f.flushing == 0 or r.now_ms - f.flushing_ms < SLOW_MS:
        return False
    while link != NULL:
        q = <fetched_t*>link.owner
        link = link.next
        if q.sync.log != NULL:
            slow_note(&q.partition.log.slow_appends, f.flushing_ms)
            take_out(r, c, q, SLOW, 0, -1, -1)
    return True


cdef inline bint lags(const fetched_t* q) noexcept nogil:
    """Is it known to be behind its leader? A leader that is new to it has to say so first: it may be in sync."""
    cdef view_t v
    log_view(q.partition.log, &v)
    return v.log_end < peek_i64(&q.leader_end)


cdef void rest(reactor_t* r, conn_t* c) noexcept nogil:
    """Take out throttled partitions that lag behind, where too much was copied of such: they come back later."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef link_t* link = f.listed.first
    cdef int64_t rest_ms = 0
    cdef fetched_t* q
    if r.plane.follower_throttle != NULL and not f.awaiting:
        rest_ms = min(bucket_wait(r.plane.follower_throttle, r.now_ms), <int64_t>REST_MS_MAX)
    while rest_ms > 0 and link != NULL:
        q = <fetched_t*>link.owner
        link = link.next
        if load_i32(&q.partition.follower_throttled) and lags(q):
            take_out(r, c, q, THROTTLED, 0, -1, rest_ms)


cdef inline bint is_in_session(const replica_fetcher_t* f) noexcept nogil:
    """Can the next request be of the leader's session?"""
    return f.session_id != 0 and (f.nameless > 0) == (f.version < VERSION_IDS)


cdef const char* ask(reactor_t* r, conn_t* c) noexcept nogil:
    """Send the next request, unless one is not answered yet, or there is nothing to fetch.

    Behind one that its leader keeps there may be another, for partitions that were added since: the leader then keeps
    the first no longer, and they need not wait until its time is over. There is none behind a full one, which is why
    that is answered at once."""
    cdef replica_fetcher_t* f = fetcher_of(c)
    cdef int64_t sent = c.bytes_out
    if not replica_fetcher_take_orders(f):  # never ask for a removed partition: its leader takes a fetch as a proof
        return GONE
    rest(r, c)
    if f.listed.first == NULL and f.forgotten.first != NULL and not f.awaiting:
        end_session(f)           # nothing would tell the leader for a while, and what is forgotten is held until then
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
    if conn_flush(c) < 0:        # now: a client's ack may wait for it, and the turn's appends come before its answers
        return GONE
    tally(&r.bytes_out, c.bytes_out - sent)
    return NULL


cdef const char* replica_fetch_serve(reactor_t* r, conn_t* c) noexcept nogil:
    """A leader's connection's share of a turn; why it must end, empty if its leader or Python ended it, or NULL."""
    cdef const char* why = NULL
    cdef int reads = 0
    if not replica_fetcher_take_orders(fetcher_of(c)):
        return GONE
    if fetcher_of(c).flushing > 0:
        return NULL
    c.behind = 0
    while why == NULL and c.readable and not c.close_after and reads < READS_MAX:
        reads += 1
        why = receive(r, c)
    return why if why != NULL or c.close_after else ask(r, c)


cdef const char* replica_fetch_silence(const conn_t* c, int64_t now_ms) noexcept nogil:
    """Why a connection must end whose leader says nothing any more, or NULL."""
    cdef const replica_fetcher_t* f = fetcher_of(c)
    return SILENT if f.awaiting and not c.behind and now_ms - max(f.asked_ms, c.active_ms) > f.answer_ms_max else NULL
