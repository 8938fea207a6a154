"""Incremental fetches (KIP-227): a request's changes to its session, which partitions are checked, and which returned.

A session's next request is recognized by its epoch; one with another epoch gets INVALID_FETCH_SESSION_EPOCH. If Python
must handle a partition the session ends.
"""

from libc.stdint cimport int32_t, int64_t

from pybroker.core.base.chain cimport link_t
from pybroker.core.base.error_codes cimport INVALID_FETCH_SESSION_EPOCH
from pybroker.core.base.protocol cimport FETCH_VERSION_TOPIC_ID
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport bound_of, partition_watch
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.requests.fetch_find cimport (
    fetch_await_reader, fetch_await_records, fetch_find, fetch_is_read_first, fetch_is_slow, fetch_is_throttled,
    fetch_let_go, fetch_operation, fetcher_t,
)
from pybroker.core.plane.requests.fetch_session cimport (
    session_clear_news, session_drop, session_new, session_news, session_next_epoch, session_next_news, session_note,
    session_t, session_tells, session_to_end, session_track, session_wait, sessions_add, sessions_begin,
    sessions_remove, sessions_touch, tracked_t,
)
from pybroker.core.plane.requests.fetch_wire cimport (
    fetch_add, fetch_answer, fetch_bound, fetch_forget, fetch_t, fetch_without_session, wanted_t,
)
from pybroker.core.plane.requests.verdict cimport DECLINED, DONE, REFUSED, WAITS, verdict_t
from pybroker.core.storage.log.log cimport log_view, view_t

cdef enum:
    LOOK_MS = 500                # between two checks of all partitions of a session
    NOTE_MS = 400                # and between two times at which a follower's fetch positions are recorded for all


cdef tracked_t* track(session_t* s, const wanted_t* w) noexcept nogil:
    """Add a partition to a session, or update it, as the request says, and mark it as news; NULL without memory."""
    cdef tracked_t* t = session_track(s, w.partition)
    if t != NULL:
        t.offset = w.offset
        t.most = w.most
        t.leader_epoch = w.leader_epoch
        t.last_epoch = w.last_epoch
        t.log_start = w.log_start
        session_note(s, t)
    return t


cdef int32_t begin_session(fetcher_t* f, int64_t now_ms) noexcept nogil:
    """Begin a session with the partitions of a full fetch, as its response reports them; its id, 0 if there is no
    room."""
    cdef fetch_t* q = &f.request
    cdef session_t* s = session_new(q.version >= FETCH_VERSION_TOPIC_ID) if q.count > 0 else NULL
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


cdef verdict_t change_session(fetcher_t* f, session_t* s, int64_t now_ms) noexcept nogil:
    """Apply the request's changes to its session, and advance the session's epoch."""
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


cdef bint want_one(fetch_t* q, tracked_t* t) noexcept nogil:
    """Add a partition of the session to the fetch, and watch it; False if there are too many."""
    cdef int bound = fetch_bound(q)
    cdef wanted_t* w = fetch_add(q)
    cdef view_t v
    if w == NULL:
        return False
    log_view(t.partition.log, &v)
    partition_watch(t.partition, &t.watch, bound, bound_of(&v, bound))  # before the partition is read
    w.partition = t.partition
    w.tracked = t
    w.offset = t.offset
    w.most = t.most
    w.leader_epoch = t.leader_epoch
    w.last_epoch = t.last_epoch
    w.log_start = t.log_start
    return True


cdef bint want(fetch_t* q, session_t* s, bint all_) noexcept nogil:
    """Add the session's partitions with news to the fetch, or all its partitions, in order. News that arrives meanwhile
    is for the next check; otherwise a response would report it twice."""
    cdef int32_t left
    cdef link_t* link
    cdef tracked_t* t
    q.count = 0
    if all_:
        session_clear_news(s)
        link = s.tracked.first
        while link != NULL:
            if not want_one(q, <tracked_t*>link.owner):
                return False
            link = link.next
        return True
    left = session_news(s)
    while left > 0:
        left -= 1
        t = session_next_news(s)
        if t == NULL:
            break
        if not want_one(q, t):
            return False
    return True


cdef inline bint is_news(const wanted_t* w) noexcept nogil:
    """True if a response would include the partition."""
    cdef const tracked_t* t = w.tracked
    if w.read.found.length > 0 or w.error != 0 or w.diverges:
        return True
    return w.read.view.high_watermark != t.told_high_watermark or w.read.view.log_start != t.told_log_start


cdef inline bint has_more(const fetch_t* q, const wanted_t* w) noexcept nogil:
    """True if there are records for which the response has no room."""
    return w.offset < bound_of(&w.read.view, fetch_bound(q))


cdef void put_back(fetch_t* q, session_t* s, bint looked) noexcept nogil:
    """Mark partitions as news again, as the response waits: those that it would include or, if none was read, all."""
    cdef int32_t i
    for i in range(q.count):
        if not looked or is_news(&q.wanted[i]) or has_more(q, &q.wanted[i]):
            session_note(s, q.wanted[i].tracked)


cdef void keep_news(fetch_t* q, session_t* s) noexcept nogil:
    """Remove partitions without news from the fetch, and move those with records to the end of the session's order.

    If a partition has more records, or had some, the next fetch checks it again: its client may fetch the same once
    more."""
    cdef int32_t i, n = 0
    cdef wanted_t* w
    cdef tracked_t* t
    for i in range(q.count):
        w = &q.wanted[i]
        t = w.tracked
        if w.read.found.length == 0 and (w.error != 0 or w.diverges or has_more(q, w)):
            session_note(s, t)
        if not is_news(w):
            continue
        t.told_high_watermark = w.read.view.high_watermark
        t.told_log_start = w.read.view.log_start
        q.wanted[n] = w[0]
        n += 1
    q.count = n
    for i in range(n):
        if q.wanted[i].read.found.length > 0:
            session_to_end(s, q.wanted[i].tracked)
            session_note(s, q.wanted[i].tracked)


cdef inline void wait_for_news(fetcher_t* f, operation_t* op, session_t* s, int64_t seen) noexcept nogil:
    op.fetch.waiter.notify = f.news
    op.fetch.waiter.owner = op
    session_wait(s, &op.fetch.waiter, seen)


cdef verdict_t seek_news(
    fetcher_t* f, conn_t* c, operation_t** op, bint again, session_t* s, int64_t now_ms) noexcept nogil:
    """Find enough for a response among the news of a locked session; all its partitions are checked every LOOK_MS.
    Returns as `fetch` does; an operation that waits holds nothing."""
    cdef fetch_t* q = &f.request
    cdef bint settled = False, late = again and (op[0].fetch.is_hurried or now_ms >= op[0].timer.deadline_ms)
    cdef bint note_all = f.noting and now_ms - s.noted_ms >= NOTE_MS
    cdef bint all_ = late or note_all or now_ms - s.looked_ms >= LOOK_MS
    cdef int64_t seen = session_tells(s)
    if not want(q, s, all_) or fetch_is_slow(q):
        return DECLINED
    if all_:
        s.looked_ms = now_ms
    if note_all:
        s.noted_ms = now_ms
    if not late and fetch_is_read_first(f, c, op):
        put_back(q, s, False)
        fetch_await_reader(f, op[0], again, now_ms)
        wait_for_news(f, op[0], s, seen)
        return WAITS
    if not fetch_find(f, &settled):
        return DECLINED
    if settled or late or s.tracked.count == 0:
        return DONE
    fetch_let_go(q)
    put_back(q, s, True)
    if not fetch_operation(c, op):
        return REFUSED
    fetch_await_records(f, op[0], again, now_ms)
    wait_for_news(f, op[0], s, seen)
    return WAITS


cdef verdict_t go_on(
    fetcher_t* f, conn_t* c, operation_t** op, bint again, session_t* s, int64_t now_ms) noexcept nogil:
    """Execute an incremental fetch of a locked session."""
    cdef fetch_t* q = &f.request
    cdef int32_t id = q.session_id
    cdef verdict_t status = DONE
    if not again:
        status = DECLINED if q.foreign else change_session(f, s, now_ms)
    elif s.epoch != session_next_epoch(q.session_epoch):
        q.count = 0              # another request of the session was executed meanwhile
        return fetch_answer(q, c, INVALID_FETCH_SESSION_EPOCH, id)
    if status == DONE:
        status = seek_news(f, c, op, again, s, now_ms)
    if status == DONE:
        if s.tracked.count == 0:
            id = 0               # all partitions were removed, so it has ended
        if fetch_is_throttled(f, c):
            put_back(q, s, True)
            fetch_let_go(q)
            q.count = 0
        else:
            keep_news(q, s)
        status = fetch_answer(q, c, 0, id)
    fetch_let_go(q)
    if status == DECLINED:
        f.instead = fetch_without_session(q, s, &f.instead_bytes)
        sessions_remove(f.sessions, id)
        return DECLINED if f.instead != NULL else REFUSED
    return status


cdef verdict_t fetch_incremental(
    fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil:
    """Execute a Fetch of a session; returns as `fetch` does."""
    cdef fetch_t* q = &f.request
    cdef session_t* s
    cdef verdict_t status
    cdef int error
    if again:
        s = op[0].fetch.session
        pthread_mutex_lock(&s.lock)
    else:
        error = sessions_begin(f.sessions, q.session_id, q.session_epoch, q.version >= FETCH_VERSION_TOPIC_ID, &s)
        if error != 0:
            q.count = 0
            return fetch_answer(q, c, error, 0)
    status = go_on(f, c, op, again, s, now_ms)
    pthread_mutex_unlock(&s.lock)
    if not again and status == WAITS:
        op[0].fetch.session = s  # with the reference from sessions_begin
    elif not again:
        session_drop(s)
    return status
