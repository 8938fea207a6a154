"""Fetch, natively: request v4-18, answers that are ranges of log files, long polls that wait for an append.

    full (epoch 0 or -1)    wants what it names; epoch 0: what its answer tells begins a session
    incremental (id, n)     changes its session, wants all of it, tells what is news of it (fetch_session.pyx)

What is foreign here (an unknown partition, a follower, a fenced epoch) goes to Python, which knows no sessions of ours:
a session ends by that, and Python gets the request as one that names everything itself. Its answer names no session,
and the client begins a new one. An answer ends at a batch boundary. A fetch that finds less than min_bytes watches its
partitions, looks once more, and waits (operation.pyx); told of an append, or at its deadline, it is executed again from
the bytes of its request, whose changes to its session were made the first time.
"""

from libc.errno cimport EMFILE
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.atomic cimport load_i32, load_i64
from pybroker.core.base.chain cimport link_t
from pybroker.core.base.clock cimport monotonic_ms
from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.base.error_codes cimport (
    INVALID_FETCH_SESSION_EPOCH, KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH,
)
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport (
    BOUND_HIGH_WATERMARK, LEADER, bound_of, partition_hold, partition_read, partition_role, partition_watch, role_t,
)
from pybroker.core.plane.conn cimport conn_t, operation_t, parked_t
from pybroker.core.plane.fetch_session cimport (
    session_drop, session_new, session_next_epoch, session_t, session_to_end, session_track, sessions_add,
    sessions_begin, sessions_remove, sessions_touch, tracked_t,
)
from pybroker.core.plane.fetch_wire cimport (
    FETCH_VERSION_IDS, FETCH_VERSION_MAX, FETCH_VERSION_MIN, fetch_add, fetch_answer, fetch_forget, fetch_read, fetch_t,
    fetch_without_session, wanted_t,
)
from pybroker.core.plane.operation cimport operation_new, operation_unwatch
from pybroker.core.plane.produce cimport DECLINED, DONE, REFUSED, WAITS
from pybroker.core.storage.cold_reads cimport cold_new, cold_put, cold_t, cold_wish, reader_is_cold, reader_is_open
from pybroker.core.storage.leader_epochs cimport epochs_end
from pybroker.core.storage.log cimport log_t, log_view, view_t
from pybroker.core.storage.open_files cimport files_drop
from pybroker.core.storage.slow_disk cimport slow_is, slow_note

cdef enum:
    EPOCH_FULL = 0               # a full fetch that asks for a session
    EPOCH_NONE = -1              # a full fetch that asks for none
    READ_MS_MAX = 30000          # for a reader, before the reactor waits for the disk itself
    OPENS_MAX = 4                # of one request on the reactor: a reader opened what it was asked to read
    LATER = -2                   # of a partition: not in this answer


cdef void fetcher_free(fetcher_t* f) noexcept nogil:
    free(f.request.wanted)


# -- finding -----------------------------------------------------------------------------------------------------------

cdef void let_go(fetch_t* q) noexcept nogil:
    cdef int32_t i
    for i in range(q.count):
        if q.wanted[i].read.found.files != NULL:
            files_drop(q.wanted[i].read.found.files)
            q.wanted[i].read.found.files = NULL


cdef bint follows(const wanted_t* w, int32_t leader_epoch) noexcept nogil:
    """Does the client's last record lie in our log too? Its offset is known to be in the log's range (KIP-320)."""
    cdef log_t* l = w.partition.log
    cdef view_t v
    cdef int64_t end = -1
    cdef int32_t found
    if w.last_epoch == leader_epoch:
        return True
    log_view(l, &v)
    found = epochs_end(&l.epochs, w.last_epoch, v.log_end, &end)
    return found == w.last_epoch and w.offset <= end


cdef bint may_open(fetch_t* q) noexcept nogil:
    """Count a file that is opened for an answer here. As long as it has nothing, it may be any number."""
    q.opens += 1
    return q.opens <= OPENS_MAX or q.found_bytes == 0


cdef void tell_ends(wanted_t* w) noexcept nogil:
    """Tell of a partition how far it goes, and give nothing of it."""
    log_view(w.partition.log, &w.read.view)
    w.read.generation = load_i64(&w.partition.log.generation)


cdef int find_one(fetch_t* q, wanted_t* w, int64_t most) noexcept nogil:
    """Find what a partition can give; 0, the error that its client gets, -1: Python must look at it, or LATER: its file
    is closed, and there is no descriptor for it now."""
    cdef role_t role
    cdef int32_t epoch
    cdef int status
    w.read.found.files = NULL
    w.read.found.length = 0
    partition_role(w.partition, &role)
    epoch = <int32_t>role.leader_epoch
    if not load_i32(&w.partition.published) or (w.leader_epoch != -1 and w.leader_epoch < epoch):
        return -1
    if role.kind != LEADER:
        return -1
    if load_i32(&w.partition.log.unread):
        return -1                # its disk failed a read: Python reads before it answers
    if w.leader_epoch > epoch:
        status = UNKNOWN_LEADER_EPOCH
    elif not reader_is_open(w.partition.log, w.offset) and not may_open(q):
        status = -EMFILE
    else:
        status = partition_read(
            w.partition, w.offset, most, BOUND_HIGH_WATERMARK + q.isolation, q.found_bytes == 0, &w.read)
    if status == -EMFILE and q.found_bytes > 0:
        tell_ends(w)
        return LATER
    if w.last_epoch >= 0 and (status != 0 or not follows(w, epoch)):
        return -1
    if status != 0:
        w.read.view.high_watermark = w.read.view.last_stable = w.read.view.log_start = -1
    if status == 0 or status == OFFSET_OUT_OF_RANGE or status == UNKNOWN_LEADER_EPOCH:
        return status
    return KAFKA_STORAGE_ERROR if status < 0 or status == KAFKA_STORAGE_ERROR else -1


cdef bint find(fetcher_t* f, bint* settled) noexcept nogil:
    """Find what each partition can give, in order, within the limits; False if Python must look at one of them.

    The first that has anything gives at least one whole batch, whatever the limits (KIP-74). settled: no waiting."""
    cdef fetch_t* q = &f.request
    cdef int64_t left = q.max_bytes if q.max_bytes < f.bytes_max else f.bytes_max
    cdef int64_t began_ms = monotonic_ms()
    cdef wanted_t* w
    cdef int32_t i
    q.found_bytes = 0
    q.opens = 0
    settled[0] = q.max_wait_ms <= 0 or q.count == 0
    for i in range(q.count):
        w = &q.wanted[i]
        w.error = find_one(q, w, w.most if w.most < left else left)
        if w.error == LATER:
            w.error = 0
            settled[0] = True
        if w.error < 0:
            q.count = i + 1
            let_go(q)
            return False
        settled[0] |= w.error != 0
        f.errors += w.error != 0
        if w.read.found.length > 0:
            slow_note(&w.partition.log.slow_reads, began_ms)
            began_ms = monotonic_ms()
        q.found_bytes += w.read.found.length
        left = max(<int64_t>0, left - w.read.found.length)
    settled[0] |= q.found_bytes >= q.min_bytes
    return True


cdef bint begin_wait(conn_t* c, operation_t** op) noexcept nogil:
    """Make the operation of a request that may have to wait; False without memory. It may have one already."""
    if op[0] == NULL:
        op[0] = operation_new(c, 0)
    return op[0] != NULL


cdef int park(fetcher_t* f, operation_t* op) noexcept nogil:
    """Watch every partition that is wanted."""
    cdef fetch_t* q = &f.request
    cdef int bound = BOUND_HIGH_WATERMARK + q.isolation
    cdef int32_t i
    op.parked = <parked_t*>calloc(q.count, sizeof(parked_t))
    if op.parked == NULL:
        return REFUSED
    op.parked_count = q.count
    for i in range(q.count):
        partition_hold(q.wanted[i].partition)
        op.parked[i].held = q.wanted[i].partition
        op.parked[i].watch.notify = f.notify
        op.parked[i].watch.owner = op
        partition_watch(q.wanted[i].partition, &op.parked[i].watch, bound, bound_of(&q.wanted[i].read.view, bound))
    return WAITS


cdef bint is_read_first(fetcher_t* f, conn_t* c, operation_t** op) noexcept nogil:
    """Is something that the answer may have not in the page cache? Then a reader reads it, and tells the operation."""
    cdef fetch_t* q = &f.request
    cdef int64_t left = min(<int64_t>q.max_bytes, f.bytes_max), most
    cdef cold_t* cold = NULL
    cdef wanted_t* w
    cdef int32_t i
    if op[0] != NULL and op[0].is_warm:
        op[0].is_warm = 0
        return False
    if op[0] != NULL and op[0].reading:
        return True
    for i in range(q.count):
        w = &q.wanted[i]
        most = min(<int64_t>w.most, left)
        if reader_is_cold(w.partition.log, w.offset, most, &c.warm):
            if cold == NULL and begin_wait(c, op):
                cold = cold_new(f.warmed, op[0])
            if cold != NULL:
                cold_wish(cold, w.partition.log, w.offset, most)
            left -= most
        if left <= 0:
            break
    if cold == NULL:
        return False
    op[0].refs += 1              # before it can tell
    op[0].reading = 1
    if cold_put(cold):
        return True
    op[0].refs -= 1
    op[0].reading = 0
    return False


cdef bint is_slow(const fetch_t* q) noexcept nogil:
    """Is something wanted that a reactor may have to wait for?"""
    cdef int32_t i
    for i in range(q.count):
        if slow_is(&q.wanted[i].partition.log.slow_reads):
            return True
    return False


cdef int seek(fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil:
    """Find enough for an answer: DONE; WAITS with an operation that holds nothing; DECLINED or REFUSED."""
    cdef bint settled = False, late = again and now_ms >= op[0].deadline_ms
    cdef int64_t waits_until_ms = now_ms + f.request.max_wait_ms + 1  # the clock is cut to milliseconds: none too few
    if is_slow(&f.request):
        return DECLINED
    if not late and is_read_first(f, c, op):
        if not again:
            op[0].deadline_ms = now_ms + max(<int64_t>f.request.max_wait_ms, <int64_t>READ_MS_MAX)
        return WAITS
    if not find(f, &settled):
        return DECLINED
    if settled or late:
        return DONE
    let_go(&f.request)
    if not begin_wait(c, op):
        return REFUSED
    operation_unwatch(op[0])
    if park(f, op[0]) != WAITS:
        return REFUSED
    if not again or op[0].deadline_ms > waits_until_ms:
        op[0].deadline_ms = waits_until_ms
    if not find(f, &settled):
        return DECLINED
    if settled:
        return DONE
    let_go(&f.request)
    return WAITS


# -- sessions ----------------------------------------------------------------------------------------------------------

cdef tracked_t* track(session_t* s, const wanted_t* w) noexcept nogil:
    """Have a session want a partition as a request does; NULL without memory."""
    cdef tracked_t* t = session_track(s, w.partition)
    if t != NULL:
        t.offset = w.offset
        t.most = w.most
        t.leader_epoch = w.leader_epoch
        t.last_epoch = w.last_epoch
    return t


cdef int32_t begin_session(fetcher_t* f, int64_t now_ms) noexcept nogil:
    """A session of what a full fetch wanted and its answer tells; its id, 0 where there is no room."""
    cdef fetch_t* q = &f.request
    cdef session_t* s = session_new(q.version >= FETCH_VERSION_IDS) if q.count > 0 else NULL
    cdef tracked_t* t
    cdef wanted_t* w
    cdef int32_t i, id = 0
    if s == NULL:
        return 0
    for i in range(q.count):
        w = &q.wanted[i]
        t = track(s, w)
        if t == NULL:
            break
        t.told_high_watermark = w.read.view.high_watermark
        t.told_log_start = w.read.view.log_start
    else:
        id = sessions_add(f.sessions, s, now_ms)
    session_drop(s)
    return id


cdef int change_session(fetcher_t* f, session_t* s, int64_t now_ms) noexcept nogil:
    """Make the request's changes to its session, whose next epoch begins."""
    cdef fetch_t* q = &f.request
    cdef int32_t i
    for i in range(q.count):
        if track(s, &q.wanted[i]) == NULL:
            return REFUSED
    fetch_forget(q, s)
    sessions_touch(f.sessions, s, now_ms)
    if s.tracked.count == 0:
        sessions_remove(f.sessions, q.session_id)
    return DONE


cdef int want_all(fetch_t* q, session_t* s) noexcept nogil:
    """Want what the session has, in its order."""
    cdef link_t* link = s.tracked.first
    cdef tracked_t* t
    cdef wanted_t* w
    q.count = 0
    while link != NULL:
        t = <tracked_t*>link.owner
        w = fetch_add(q)
        if w == NULL:
            return DECLINED
        w.partition = t.partition
        w.tracked = t
        w.offset = t.offset
        w.most = t.most
        w.leader_epoch = t.leader_epoch
        w.last_epoch = t.last_epoch
        link = link.next
    return DONE


cdef void keep_news(fetch_t* q, session_t* s) noexcept nogil:
    """Want no more what brings no news; what brings records comes last from now on."""
    cdef int32_t i, n = 0
    cdef wanted_t* w
    cdef tracked_t* t
    for i in range(q.count):
        w = &q.wanted[i]
        t = w.tracked
        if w.read.found.length == 0 and w.error == 0 and w.read.view.high_watermark == t.told_high_watermark:
            if w.read.view.log_start == t.told_log_start:
                continue
        t.told_high_watermark = w.read.view.high_watermark
        t.told_log_start = w.read.view.log_start
        if w.read.found.length > 0:
            session_to_end(s, t)
        q.wanted[n] = w[0]
        n += 1
    q.count = n


cdef int go_on(
    fetcher_t* f, conn_t* c, operation_t** op, bint again, session_t* s, int64_t now_ms) noexcept nogil:
    """Execute an incremental fetch of a session that is locked."""
    cdef fetch_t* q = &f.request
    cdef int32_t id = q.session_id
    cdef int status = DONE
    if not again:
        status = DECLINED if q.foreign else change_session(f, s, now_ms)
    elif s.epoch != session_next_epoch(q.session_epoch):
        q.count = 0              # another request of the session came meanwhile
        return fetch_answer(q, c, INVALID_FETCH_SESSION_EPOCH, id)
    if status == DONE:
        status = want_all(q, s)
    if status == DONE:
        status = seek(f, c, op, again, now_ms)
    if status == DONE:
        if q.count == 0:
            id = 0               # it forgot everything, and ended
        keep_news(q, s)
        status = fetch_answer(q, c, 0, id)
    let_go(q)
    if status == DECLINED:
        f.instead = fetch_without_session(q, s, &f.instead_bytes)
        sessions_remove(f.sessions, id)
        return DECLINED if f.instead != NULL else REFUSED
    return status


cdef int incremental(fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil:
    cdef fetch_t* q = &f.request
    cdef session_t* s
    cdef int status = 0
    if again:
        s = op[0].session
        pthread_mutex_lock(&s.lock)
    else:
        status = sessions_begin(f.sessions, q.session_id, q.session_epoch, q.version >= FETCH_VERSION_IDS, &s)
        if status != 0:
            q.count = 0
            return fetch_answer(q, c, status, 0)
    status = go_on(f, c, op, again, s, now_ms)
    pthread_mutex_unlock(&s.lock)
    if not again and status == WAITS:
        op[0].session = s        # with the hold that it was found with
    elif not again:
        session_drop(s)
    return status


cdef int full(fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil:
    cdef fetch_t* q = &f.request
    cdef int status
    if q.session_id != 0:
        sessions_remove(f.sessions, q.session_id)
    status = DECLINED if q.foreign else seek(f, c, op, again, now_ms)
    if status == DONE:
        status = fetch_answer(q, c, 0, begin_session(f, now_ms) if q.session_epoch == EPOCH_FULL else 0)
    let_go(q)
    if status == DECLINED and q.session_epoch == EPOCH_FULL:
        f.instead = fetch_without_session(q, NULL, &f.instead_bytes)
        return DECLINED if f.instead != NULL else REFUSED
    return status


cdef int fetch(
    fetcher_t* f, conn_t* c, operation_t** op, cursor_t* r, int16_t version, int64_t now_ms) noexcept nogil:
    """Execute one Fetch request, the cursor standing behind its api version. Pinned.

    op: NULL before it waited; its operation, where it is executed again, or made here. With another verdict than WAITS
    the operation is over."""
    cdef fetch_t* q = &f.request
    cdef bint again = op[0] != NULL
    if version < FETCH_VERSION_MIN or version > FETCH_VERSION_MAX or not fetch_read(q, f.registry, r, version):
        return DECLINED
    if q.session_epoch == EPOCH_FULL or q.session_epoch == EPOCH_NONE:
        return full(f, c, op, again, now_ms)
    return incremental(f, c, op, again, now_ms)
