"""Samples of requests for tracing: the facts and stages of single Produce and Fetch requests, as their reactor sees
them. samples.pxd has the states.

A response is sent when the connection's output was sent up to its end. That position is known because nothing before
it changes its size: no Produce is sampled while a Fetch of the same connection waits.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from pybroker.core.base.atomic cimport load_i64, store_i64
from pybroker.core.base.chain cimport link_t
from pybroker.core.base.counters cimport KINDS, OF_PRODUCE
from pybroker.core.base.cursor cimport load_be16, load_be32
from pybroker.core.base.error_codes cimport KAFKA_STORAGE_ERROR
from pybroker.core.base.frame cimport AT_API_VERSION, AT_CLIENT_ID, AT_CLIENT_ID_LENGTH, AT_CORRELATION_ID
from pybroker.core.partition.append cimport checked_t
from pybroker.core.partition.partition cimport partition_t
from pybroker.core.plane.connection.conn cimport conn_position, conn_t
from pybroker.core.plane.connection.operation cimport operation_t
from pybroker.core.plane.requests.fetch_wire cimport fetch_t
from pybroker.core.plane.requests.produce cimport order_t, turn_t
from pybroker.core.storage.producers.producer_state cimport DUPLICATE


cdef sample_t* begin_sample(samples_t* s, int kind, const conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Begin a sample with the facts of the request's header, which was found to be valid."""
    cdef sample_t* a = &s.current[kind]
    cdef int16_t length = load_be16(frame + AT_CLIENT_ID_LENGTH) if n >= AT_CLIENT_ID else -1
    memset(a, 0, sizeof(sample_t))
    a.kind = kind
    a.conn = c.id
    a.request_bytes = n
    a.version = load_be16(frame + AT_API_VERSION)
    a.correlation = load_be32(frame + AT_CORRELATION_ID)
    a.client_id_length = <int32_t>min(<int64_t>length, min(n - AT_CLIENT_ID, <int64_t>SAMPLED_ID_BYTES))
    if a.client_id_length > 0:
        memcpy(a.client_id, frame + AT_CLIENT_ID, a.client_id_length)
    s.active += 1
    return a


cdef void add_partition(sample_t* a, const partition_t* before, const partition_t* p, int error) noexcept nogil:
    """Count a partition; `before`: the one before it in the request, NULL for the first."""
    if before == NULL:
        a.topic_length = p.topic_length
        memcpy(a.topic, p.topic, p.topic_length)
    if before == NULL or before.topic_length != p.topic_length or memcmp(before.topic, p.topic, p.topic_length) != 0:
        a.topics += 1
    a.partitions += 1
    add_error(a, error)


cdef void add_error(sample_t* a, int error) noexcept nogil:
    if error != 0:
        a.error = error if a.errors == 0 else a.error
        a.errors += 1


cdef void release(samples_t* s, sample_t* a) noexcept nogil:
    a.state = FREE
    s.active -= 1


cdef void keep(samples_t* s, sample_t* a) noexcept nogil:
    """Put a finished sample into the ring, unless that is full."""
    if s.put - load_i64(&s.taken) < RING:
        memcpy(&s.ring[s.put % RING], a, sizeof(sample_t))
        store_i64(&s.put, s.put + 1)  # after its contents, which Python reads from then on
    release(s, a)


cdef inline int status_of(const checked_t* a) noexcept nogil:
    """The error code of an append."""
    if a.status == DUPLICATE:
        return 0
    return a.status if a.status >= 0 else KAFKA_STORAGE_ERROR


# -- Produce -----------------------------------------------------------------------------------------------------------

cdef void sample_produce(
    samples_t* s, const turn_t* t, conn_t* c, const uint8_t* frame, int64_t n, int64_t begin_at,
    int64_t read_ns) noexcept nogil:
    """Begin the sample of a Produce whose batches were gathered just now, as the last of the turn."""
    cdef const order_t* last = &t.orders[t.count - 1]
    cdef sample_t* a
    if t.count == 0 or last.conn != c or last.begin != begin_at or c.requests.fetching != NULL:
        return                   # it has no batches, or its response may still move
    a = begin_sample(s, OF_PRODUCE, c, frame, n)
    a.state = GATHERED
    a.begin = begin_at
    a.end = conn_position(c)
    a.first = last.first
    a.orders = t.count - last.first
    a.read_ns = s.began_ns[<int>OF_PRODUCE] = read_ns


cdef bint is_waiting(const conn_t* c, int64_t begin_at) noexcept nogil:
    """True if the response that begins there waits for replicas or the disk."""
    cdef link_t* link = c.requests.operations.first
    while link != NULL:
        if (<operation_t*>link.owner).begin == begin_at:
            return True
        link = link.next
    return False


cdef void sample_appended(samples_t* s, const turn_t* t) noexcept nogil:
    """Add the facts of the appends that were made just now; the orders are still where they were gathered."""
    cdef sample_t* a = &s.current[<int>OF_PRODUCE]
    cdef const order_t* o
    cdef int32_t i
    for i in range(a.first, a.first + a.orders):
        o = &t.orders[i]
        add_partition(a, t.orders[i - 1].partition if i > a.first else NULL, o.partition, status_of(&o.checked))
    a.queue_ns = t.began_ns - a.read_ns
    a.local_ns = t.appended_ns - t.began_ns
    a.done_ns = t.appended_ns
    a.state = WAITS if is_waiting(t.orders[a.first].conn, a.begin) else DONE
    if a.end == a.begin:         # acks=0: there is no response
        keep(s, a)


cdef void sample_replicated(samples_t* s, const operation_t* op, int64_t now_ns) noexcept nogil:
    """End the wait of a Produce, if it is the sampled one."""
    cdef sample_t* a = &s.current[<int>OF_PRODUCE]
    cdef int32_t i
    if a.state != WAITS or op.conn.id != a.conn or op.begin != a.begin:
        return
    for i in range(op.produce.awaited_count):
        add_error(a, op.produce.awaited[i].error)
    a.remote_ns = now_ns - op.produce.since_ns
    a.done_ns = now_ns
    a.state = DONE


# -- Fetch, and both ---------------------------------------------------------------------------------------------------

cdef sample_t* sample_fetch(
    samples_t* s, int kind, const fetch_t* q, conn_t* c, const uint8_t* frame, int64_t n) noexcept nogil:
    """Begin the sample of a Fetch that was executed for the last time just now; the caller adds its stages."""
    cdef sample_t* a = begin_sample(s, kind, c, frame, n)
    cdef int32_t i
    for i in range(q.count):
        add_partition(a, q.wanted[i - 1].partition if i > 0 else NULL, q.wanted[i].partition, q.wanted[i].error)
    a.state = DONE
    return a


cdef void samples_sent(samples_t* s, const conn_t* c, int64_t now_ns) noexcept nogil:
    """Finish the samples of a connection whose responses are sent."""
    cdef sample_t* a
    cdef int kind
    for kind in range(<int>KINDS):
        a = &s.current[kind]
        if a.state == DONE and a.conn == c.id and c.output.sent >= a.end:
            a.send_ns = now_ns - a.done_ns
            keep(s, a)


cdef void samples_forget(samples_t* s, int64_t conn) noexcept nogil:
    """Drop the samples of a connection that has ended."""
    cdef int kind
    for kind in range(<int>KINDS):
        if s.current[kind].state != FREE and s.current[kind].conn == conn:
            release(s, &s.current[kind])
