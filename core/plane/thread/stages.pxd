# The stages of requests, timed by a few clock readings a turn: the requests of a turn share what they do together.
#
#     turn began .. queue .. executed .. local .. done, or waits .. remote .. done .. send .. in the kernel
#
# Responses of one connection that are complete, but not sent, share the time of the oldest of them.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.counters cimport KINDS, OF_CONSUMER, OF_FOLLOWER, OF_PRODUCE, histogram_add, stages_t
from pybroker.core.plane.connection.conn cimport conn_position, conn_sendable, conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.requests.verdict cimport DONE, WAITS, verdict_t
from pybroker.core.plane.thread.reactor cimport reactor_t
from pybroker.core.plane.thread.samples cimport (
    GATHERED, WAITS as SAMPLE_WAITS, sample_appended, sample_fetch, sample_is_due, sample_produce, sample_replicated,
    sample_t, samples_sent,
)


cdef inline void stages_drained(reactor_t* r) noexcept nogil:
    """Time the Produce requests whose batches were appended just now."""
    cdef stages_t* s = &r.books.stages[<int>OF_PRODUCE]
    histogram_add(&s.queue, (r.turn.began_ns - r.pace.began_ns) // 1000, r.turn.drained)
    histogram_add(&s.local, (r.turn.appended_ns - r.turn.began_ns) // 1000, r.turn.drained)
    histogram_add(&s.remote, 0, r.turn.drained - r.turn.awaited)
    if r.samples.current[<int>OF_PRODUCE].state == GATHERED:
        sample_appended(&r.samples, &r.turn)


cdef inline void stages_gathered(
    reactor_t* r, conn_t* c, const uint8_t* frame, int64_t n, int64_t begin) noexcept nogil:
    """Sample a Produce that was gathered just now, if one is due; `begin` is the position of its response."""
    if sample_is_due(&r.samples, OF_PRODUCE, load_i64(&r.plane.sample_ns), r.pace.began_ns):
        sample_produce(&r.samples, &r.turn, c, frame, n, begin, r.pace.began_ns)


cdef inline void stages_replicated(reactor_t* r, operation_t* op, int64_t now_ns) noexcept nogil:
    """Time a Produce whose wait is over."""
    histogram_add(&r.books.stages[<int>OF_PRODUCE].remote, (now_ns - op.produce.since_ns) // 1000, 1)
    op.conn.output.unsent[<int>OF_PRODUCE] += 1
    if r.samples.current[<int>OF_PRODUCE].state == SAMPLE_WAITS:
        sample_replicated(&r.samples, op, now_ns)


cdef inline void stages_fetched(
    reactor_t* r, conn_t* c, operation_t* op, verdict_t verdict, int64_t began_ns, const uint8_t* frame, int64_t n,
    int64_t written) noexcept nogil:
    """Time an execution of a Fetch that began at `began_ns`; op: NULL if it has not waited. `frame`: its request;
    `written`: bytes of its response."""
    cdef int kind = OF_FOLLOWER if c.is_follower else OF_CONSUMER
    cdef stages_t* s = &r.books.stages[kind]
    cdef int64_t now_ns, local_ns, first_ns = began_ns, read_ns = r.pace.began_ns
    cdef sample_t* a
    if verdict != DONE and verdict != WAITS:
        return
    now_ns = monotonic_ns()
    local_ns = now_ns - began_ns
    if op != NULL and op.fetch.first_ns != 0:
        first_ns, read_ns = op.fetch.first_ns, op.fetch.began_ns
        local_ns += op.fetch.local_ns
    if verdict == WAITS:
        op.fetch.first_ns, op.fetch.local_ns = first_ns, local_ns
        return
    histogram_add(&s.queue, (first_ns - read_ns) // 1000, 1)
    histogram_add(&s.local, local_ns // 1000, 1)
    histogram_add(&s.remote, (now_ns - first_ns - local_ns) // 1000, 1)
    c.output.unsent[kind] += 1
    if sample_is_due(&r.samples, kind, load_i64(&r.plane.sample_ns), now_ns):
        a = sample_fetch(&r.samples, kind, &r.fetch.request, c, frame, n)
        a.begin = op.begin if op != NULL and op.fetch.slot != NULL else conn_position(c) - written
        a.end = a.begin + written
        a.read_ns, a.queue_ns, a.local_ns = read_ns, first_ns - read_ns, local_ns
        a.remote_ns = now_ns - first_ns - local_ns
        a.done_ns = r.samples.began_ns[kind] = now_ns


cdef inline bint is_unsent(const conn_t* c) noexcept nogil:
    cdef int32_t any = 0
    cdef int kind
    for kind in range(<int>KINDS):
        any |= c.output.unsent[kind]
    return any != 0


cdef inline void stages_unsent(reactor_t* r, conn_t* c) noexcept nogil:
    """Remember since when complete responses wait to be sent."""
    if c.output.unsent_ns == 0 and is_unsent(c):
        c.output.unsent_ns = r.pace.ready_ns


cdef inline void stages_sent(reactor_t* r, conn_t* c) noexcept nogil:
    """Time the complete responses of a connection, if all are sent."""
    cdef int64_t took_us
    cdef int kind
    if r.samples.active > 0:
        samples_sent(&r.samples, c, monotonic_ns())
    if not is_unsent(c):
        return
    if conn_sendable(c) > 0:
        stages_unsent(r, c)
        return
    took_us = (monotonic_ns() - c.output.unsent_ns) // 1000 if c.output.unsent_ns != 0 else 0
    for kind in range(<int>KINDS):
        if c.output.unsent_ns == 0:
            r.books.stages[kind].sent_in_turn += c.output.unsent[kind]
        else:
            histogram_add(&r.books.stages[kind].send, took_us, c.output.unsent[kind])
        c.output.unsent[kind] = 0
    c.output.unsent_ns = 0


cdef inline void stages_turned(reactor_t* r, int64_t ended_ns) noexcept nogil:
    """Time the responses that were completed and sent in the turn that has ended."""
    cdef int kind
    for kind in range(<int>KINDS):
        histogram_add(
            &r.books.stages[kind].send, (ended_ns - r.pace.ready_ns) // 1000, r.books.stages[kind].sent_in_turn)
        r.books.stages[kind].sent_in_turn = 0
