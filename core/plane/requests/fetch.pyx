"""Fetch without Python: requests v4-18, responses from ranges of log files, long polls that wait for an append.

    full (epoch 0 or -1)    fetches the partitions that it names; with epoch 0 its response begins a session.
    incremental (id, n)     changes its session, and returns the partitions with news (fetch_incremental.pyx).

Requests that cannot be handled here (an unknown partition, a follower, a fenced epoch) go to Python, which does not
know our sessions: the session ends, and Python gets the request as a full one without a session. Its response has no
session, and the client begins a new one. A response ends at a batch boundary. A fetch that finds less than min_bytes
watches its partitions, checks them once more, and waits (operation.pyx). After an append, or at its deadline, it is
executed again from the bytes of its request, whose changes to its session were made the first time.
"""

from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.base.cursor cimport cursor_t
from pybroker.core.base.protocol cimport FETCH_VERSION_MAX, FETCH_VERSION_MIN
from pybroker.core.partition.partition cimport bound_of, partition_hold, partition_watch
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_t, operation_unwatch, parked_t
from pybroker.core.plane.limits.quotas cimport quotas_fetch_max, quotas_know
from pybroker.core.plane.limits.rights cimport RIGHT_READ, rights_allow
from pybroker.core.plane.requests.fetch_find cimport (
    fetch_await_reader, fetch_await_records, fetch_find, fetch_is_near, fetch_is_read_first, fetch_is_slow,
    fetch_is_throttled, fetch_let_go, fetch_operation, fetcher_t,
)
from pybroker.core.plane.requests.fetch_incremental cimport begin_session, fetch_incremental
from pybroker.core.plane.requests.fetch_session cimport sessions_remove
from pybroker.core.plane.requests.fetch_wire cimport (
    fetch_answer, fetch_bound, fetch_read, fetch_t, fetch_without_session,
)
from pybroker.core.plane.requests.verdict cimport DECLINED, DONE, REFUSED, WAITS, verdict_t

cdef enum:
    EPOCH_FULL = 0               # a full fetch that begins a session
    EPOCH_NONE = -1              # a full fetch without a session


cdef void fetcher_free(fetcher_t* f) noexcept nogil:
    free(f.request.wanted)
    free(f.request.aborts.items)


cdef bint park(fetcher_t* f, operation_t* op) noexcept nogil:
    """Watch every requested partition; False without memory."""
    cdef fetch_t* q = &f.request
    cdef int bound = fetch_bound(q)
    cdef parked_t* p = <parked_t*>calloc(q.count, sizeof(parked_t))
    cdef int32_t i
    if p == NULL:
        return False
    op.fetch.parked = p
    op.fetch.parked_count = q.count
    for i in range(q.count):
        partition_hold(q.wanted[i].partition)
        p[i].held = q.wanted[i].partition
        p[i].watch.notify = f.notify
        p[i].watch.owner = op
        partition_watch(q.wanted[i].partition, &p[i].watch, bound, bound_of(&q.wanted[i].read.view, bound))
    return True


cdef verdict_t seek(fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil:
    """Find enough for a response: DONE; WAITS with an operation that holds nothing; DECLINED or REFUSED."""
    cdef bint settled = False, late = again and (op[0].fetch.is_hurried or now_ms >= op[0].timer.deadline_ms)
    if fetch_is_slow(&f.request):
        return DECLINED
    if not late and fetch_is_read_first(f, c, op):
        fetch_await_reader(f, op[0], again, now_ms)
        return WAITS
    if not fetch_find(f, &settled):
        return DECLINED
    if settled or late or f.request.count == 0:
        return DONE
    fetch_let_go(&f.request)
    if not fetch_operation(c, op):
        return REFUSED
    operation_unwatch(op[0])
    if not park(f, op[0]):
        return REFUSED
    fetch_await_records(f, op[0], again, now_ms)
    if not fetch_find(f, &settled):
        return DECLINED
    if settled:
        return DONE
    fetch_let_go(&f.request)
    return WAITS


cdef inline bint is_for_session(const fetch_t* q, const conn_t* c) noexcept nogil:
    """True if a session may begin. A client with rights to check has none: it names all partitions in each fetch."""
    return q.session_epoch == EPOCH_FULL and c.login.rights == NULL


cdef bint is_judged(const fetch_t* q, const conn_t* c) noexcept nogil:
    """True if Python has granted the client to read all its partitions, as a consumer without a session."""
    cdef int32_t i
    if q.replica >= 0 or q.session_id != 0:
        return False
    for i in range(q.count):
        if not rights_allow(c.login.rights, q.wanted[i].partition.topic_id, RIGHT_READ):
            return False
    return True


cdef verdict_t full(fetcher_t* f, conn_t* c, operation_t** op, bint again, int64_t now_ms) noexcept nogil:
    cdef fetch_t* q = &f.request
    cdef verdict_t status
    if q.session_id != 0:
        sessions_remove(f.sessions, q.session_id)
    status = DECLINED if q.foreign else seek(f, c, op, again, now_ms)
    if status == DONE and fetch_is_throttled(f, c):
        fetch_let_go(q)
        q.count = 0
        status = fetch_answer(q, c, 0, 0)
    elif status == DONE:
        status = fetch_answer(q, c, 0, begin_session(f, now_ms) if is_for_session(q, c) else 0)
    fetch_let_go(q)
    if status == DECLINED and q.session_epoch == EPOCH_FULL:
        f.instead = fetch_without_session(q, NULL, &f.instead_bytes)
        return DECLINED if f.instead != NULL else REFUSED
    return status


cdef void count_for(fetcher_t* f, conn_t* c, int64_t now_ms) noexcept nogil:
    """Set the buckets of a consumer's quotas. If they are not known for its client id, the fetch goes to Python."""
    cdef fetch_t* q = &f.request
    cdef int64_t number = load_i64(f.quotas)
    if number == 0:
        return
    if not quotas_know(c.limits.quotas, number, q.frame.at, q.frame.end - q.frame.at):
        q.foreign = 1
        return
    f.counted = c.limits.quotas
    q.max_bytes = <int32_t>min(<int64_t>q.max_bytes, quotas_fetch_max(c.limits.quotas, now_ms))


cdef verdict_t fetch(
    fetcher_t* f, conn_t* c, operation_t** op, cursor_t* r, int16_t version, int64_t now_ms) noexcept nogil:
    """Execute one Fetch request, with the cursor after its api version. Pinned.

    op: NULL at the first execution; the operation if the request waited, or one made here. With another verdict than
    WAITS the operation must end."""
    cdef fetch_t* q = &f.request
    cdef bint again = op[0] != NULL
    cdef verdict_t status
    if version < FETCH_VERSION_MIN or version > FETCH_VERSION_MAX or not fetch_read(q, f.registry, r, version):
        return DECLINED
    if c.login.rights != NULL and not is_judged(q, c):
        return DECLINED
    c.is_follower = q.replica >= 0
    f.counted = NULL
    q.foreign |= q.replica >= 0 and c.listener != f.replica_listener
    # A consumer in another rack may have to read from another replica, which Python knows.
    q.foreign |= q.replica < 0 and f.rack_length >= 0 and q.rack.length > 0 and not fetch_is_near(f)
    if q.replica < 0:
        count_for(f, c, now_ms)
    f.noting = q.replica >= 0 and (not again or op[0].fetch.is_unnoted)
    f.now_ms = now_ms
    if again:
        op[0].fetch.is_unnoted = 0
    if q.session_epoch == EPOCH_FULL or q.session_epoch == EPOCH_NONE:
        status = full(f, c, op, again, now_ms)
    else:
        status = fetch_incremental(f, c, op, again, now_ms)
    if status == WAITS:
        op[0].fetch.is_replica = q.replica >= 0
    return status
