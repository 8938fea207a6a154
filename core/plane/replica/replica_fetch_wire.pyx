"""The encoding of a follower's Fetch, version 17, or 12 if a topic has no id: writing requests, reading responses.

A request names the partitions whose state changed since the leader's session was updated, with neighbours of one topic
together, and those to forget. A response is read without a copy: results point into its bytes. Every length in it is
checked against the bytes that are there.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint8_t
from libc.string cimport memcmp, memset

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.base.chain cimport chain_take, chain_t, link_t
from pybroker.core.base.cursor cimport (
    BAD, OK, cursor_init, cursor_left, cursor_t, read_i16, read_i32, read_i64, read_span, read_uvarint, skip,
    store_be32, write_i16, write_i32, write_i64, write_i8, write_span, write_uvarlong, writer_init, writer_t,
)
from pybroker.core.base.frame cimport SIZE_BYTES
from pybroker.core.base.protocol cimport (
    API_FETCH, FETCH_BYTES_ABORTED_TRANSACTIONS, FETCH_BYTES_REPLICA_STATE, FETCH_BYTES_TOPICS,
    FETCH_REQUEST_BYTES_PARTITIONS, FETCH_TAG_DIVERGING_EPOCH, FETCH_TAG_REPLICA_STATE, FETCH_VERSION_REPLICA_STATE,
    FETCH_VERSION_TOPIC_ID,
)
from pybroker.core.partition.partition cimport TOPIC_ID_BYTES, partition_t
from pybroker.core.plane.connection.conn cimport conn_room, conn_t, conn_wrote
from pybroker.core.plane.replica.replica_fetcher cimport fetched_drop, fetched_t, replica_fetcher_t
from pybroker.core.plane.requests.wire cimport (
    read_length, read_topic, skip_tags, text_t, write_length, write_no_tags, write_text,
)
from pybroker.core.storage.log.leader_epochs cimport epochs_at
from pybroker.core.storage.log.log cimport log_view, view_t

cdef enum:
    REQUEST_BYTES = 128          # without client id and topics
    READ_UNCOMMITTED = 0


# -- the request -------------------------------------------------------------------------------------------------------

cdef struct topics_t:            # the partitions of a chain as a request names them
    int32_t runs                 # of neighbours of one topic
    int64_t bytes                # at most


cdef inline partition_t* partition_at(const link_t* link) noexcept nogil:
    return (<fetched_t*>link.owner).partition


cdef bint is_one_topic(const partition_t* a, const partition_t* b) noexcept nogil:
    return (a.topic_length == b.topic_length and memcmp(a.topic, b.topic, a.topic_length) == 0
            and memcmp(a.topic_id, b.topic_id, TOPIC_ID_BYTES) == 0)


cdef int32_t run_of(const link_t* first) noexcept nogil:
    """The number of neighbours of one topic from here on."""
    cdef const link_t* link = first.next
    cdef int32_t n = 1
    while link != NULL and is_one_topic(partition_at(first), partition_at(link)):
        n += 1
        link = link.next
    return n


cdef void measure(const chain_t* chain, topics_t* out) noexcept nogil:
    cdef const link_t* link = chain.first
    cdef int32_t _i
    out.runs = 0
    out.bytes = <int64_t>chain.count * FETCH_REQUEST_BYTES_PARTITIONS
    while link != NULL:
        out.runs += 1
        out.bytes += FETCH_BYTES_TOPICS + partition_at(link).topic_length
        for _i in range(run_of(link)):
            link = link.next


cdef void write_topic(writer_t* w, const partition_t* p, int16_t version) noexcept nogil:
    cdef text_t name
    if version >= FETCH_VERSION_TOPIC_ID:
        write_span(w, p.topic_id, TOPIC_ID_BYTES)
        return
    name.at = <const uint8_t*>p.topic
    name.length = p.topic_length
    write_text(w, True, &name)


cdef void write_partition(writer_t* w, replica_fetcher_t* f, fetched_t* q) noexcept nogil:
    """Write the partition's fetch offset, and the epoch of its last record."""
    cdef view_t v
    log_view(q.partition.log, &v)
    q.is_asked = 1
    q.asked_in = f.correlation
    q.asked_end = v.log_end
    q.asked_start = v.log_start
    write_i32(w, q.partition.index)
    write_i32(w, q.leader_epoch)
    write_i64(w, max(v.log_end, q.begin))
    # After a gap there is no record of ours to compare with the leader's epochs.
    write_i32(w, -1 if q.begin > v.log_end else epochs_at(&q.partition.log.epochs, v.log_end - 1))
    write_i64(w, v.log_start)
    write_i32(w, f.partition_bytes_max)
    write_no_tags(w, True)


cdef void write_fetched(writer_t* w, replica_fetcher_t* f, const topics_t* measured) noexcept nogil:
    """Write the partitions whose state changed; the leader's session then knows it."""
    cdef int32_t n
    write_length(w, True, measured.runs)
    while f.changed.first != NULL:
        n = run_of(f.changed.first)
        write_topic(w, partition_at(f.changed.first), f.version)
        write_length(w, True, n)
        while n > 0:
            write_partition(w, f, <fetched_t*>chain_take(&f.changed))
            n -= 1
        write_no_tags(w, True)


cdef void write_forgotten(writer_t* w, replica_fetcher_t* f, const topics_t* measured) noexcept nogil:
    cdef fetched_t* q
    cdef int32_t n
    write_length(w, True, measured.runs)
    while f.forgotten.first != NULL:
        n = run_of(f.forgotten.first)
        write_topic(w, partition_at(f.forgotten.first), f.version)
        write_length(w, True, n)
        while n > 0:
            q = <fetched_t*>chain_take(&f.forgotten)
            write_i32(w, q.partition.index)
            fetched_drop(q)
            n -= 1
        write_no_tags(w, True)


cdef void write_end(writer_t* w, const replica_fetcher_t* f) noexcept nogil:
    """Write an empty rack and, in versions that have it here, our replica state."""
    write_length(w, True, 0)
    if f.version < FETCH_VERSION_REPLICA_STATE:
        write_no_tags(w, True)
        return
    write_uvarlong(w, 1)
    write_uvarlong(w, FETCH_TAG_REPLICA_STATE)
    write_uvarlong(w, FETCH_BYTES_REPLICA_STATE)
    write_i32(w, f.replica_id)
    write_i64(w, load_i64(&f.broker_epoch))
    write_no_tags(w, True)


cdef int replica_fetch_write(replica_fetcher_t* f, conn_t* c) noexcept nogil:
    """Write the next request into the output: changed and forgotten partitions. 0 or -ENOMEM."""
    cdef writer_t w
    cdef topics_t fetched, forgotten
    cdef int64_t room
    cdef uint8_t* at
    measure(&f.changed, &fetched)
    measure(&f.forgotten, &forgotten)
    room = REQUEST_BYTES + f.client_id_length + fetched.bytes + forgotten.bytes
    at = conn_room(c, room)
    if at == NULL:
        return -ENOMEM
    writer_init(&w, at + SIZE_BYTES, room - SIZE_BYTES)
    write_i16(&w, API_FETCH)
    write_i16(&w, f.version)
    write_i32(&w, f.correlation)
    write_i16(&w, <int16_t>f.client_id_length)
    write_span(&w, f.client_id, f.client_id_length)
    write_no_tags(&w, True)
    if f.version < FETCH_VERSION_REPLICA_STATE:
        write_i32(&w, f.replica_id)
    write_i32(&w, 0 if f.session_id == 0 and not f.keeps_none else f.max_wait_ms)
    write_i32(&w, f.min_bytes)
    write_i32(&w, f.response_bytes_max)
    write_i8(&w, READ_UNCOMMITTED)
    write_i32(&w, f.session_id)
    write_i32(&w, f.session_epoch)
    write_fetched(&w, f, &fetched)
    write_forgotten(&w, f, &forgotten)
    write_end(&w, f)
    store_be32(at, <int32_t>(w.at - at - SIZE_BYTES))
    conn_wrote(c, w.at - at)
    return 0


# -- the response ------------------------------------------------------------------------------------------------------

cdef int replica_answer_open(answer_t* a, const uint8_t* frame, int64_t n, bint by_id) noexcept nogil:
    """Read a response up to its topics: OK, SHORT or BAD."""
    cdef cursor_t* r = &a.at
    cdef int status
    cursor_init(r, frame, n)
    a.by_id = by_id
    a.partitions_left = a.topics_left = 0
    status = read_i32(r, &a.correlation)
    if status == OK:
        status = skip_tags(r, True)
    if status == OK:
        status = skip(r, 4)      # the throttle time: followers are not throttled by it
    if status == OK:
        status = read_i16(r, &a.error)
    if status == OK:
        status = read_i32(r, &a.session_id)
    return status if status != OK else read_length(r, True, &a.topics_left)


cdef int read_divergence(cursor_t* r, brought_t* out) noexcept nogil:
    cdef int status = read_i32(r, &out.diverging_epoch)
    if status == OK:
        status = read_i64(r, &out.diverging_end)
    out.diverges = status == OK and out.diverging_end >= 0
    return status


cdef int read_partition_tags(cursor_t* r, brought_t* out) noexcept nogil:
    cdef cursor_t inside
    cdef const uint8_t* at = NULL
    cdef uint32_t _i, count = 0, tag = 0, size = 0
    cdef int status = read_uvarint(r, &count)
    for _i in range(count):
        status = read_uvarint(r, &tag)
        if status == OK:
            status = read_uvarint(r, &size)
        if status == OK:
            status = read_span(r, size, &at)
        if status == OK and tag == FETCH_TAG_DIVERGING_EPOCH:
            cursor_init(&inside, at, size)
            status = read_divergence(&inside, out)
        if status != OK:
            return status
    return status


cdef int read_aborted(cursor_t* r) noexcept nogil:
    """Skip the aborted transactions, which are for consumers only."""
    cdef int32_t _i, count = 0
    cdef int status = read_length(r, True, &count)
    for _i in range(count):
        if status == OK:
            status = skip(r, FETCH_BYTES_ABORTED_TRANSACTIONS - 1)
        if status == OK:
            status = skip_tags(r, True)  # usually one byte, which is counted above
        if status != OK:
            return status
    return status


cdef int read_partition(cursor_t* r, brought_t* out) noexcept nogil:
    cdef int status = read_i32(r, &out.index)
    out.diverges = 0
    out.records = NULL
    if status == OK:
        status = read_i16(r, &out.error)
    if status == OK:
        status = read_i64(r, &out.high_watermark)
    if status == OK:
        status = skip(r, 8)      # the last stable offset, which the log itself gives
    if status == OK:
        status = read_i64(r, &out.log_start)
    if status == OK:
        status = read_aborted(r)
    if status == OK:
        status = skip(r, 4)      # the preferred read replica
    if status == OK:
        status = read_length(r, True, &out.records_bytes)
    if status == OK and out.records_bytes > 0:
        status = read_span(r, out.records_bytes, &out.records)
    return status if status != OK else read_partition_tags(r, out)


cdef int next_topic(answer_t* a) noexcept nogil:
    """Advance to the next topic with partitions: OK, NO_MORE, SHORT or BAD."""
    cdef int status = OK
    while status == OK and a.partitions_left == 0:
        if a.topics_left <= 0:
            status = skip_tags(&a.at, True)
            return status if status != OK else NO_MORE if cursor_left(&a.at) == 0 else BAD
        a.topics_left -= 1
        status = read_topic(&a.at, a.by_id, True, &a.topic, &a.partitions_left)
        if status == OK and a.partitions_left < 0:
            return BAD
        if status == OK and a.partitions_left == 0:
            status = skip_tags(&a.at, True)
    return status


cdef int replica_answer_next(answer_t* a, brought_t* out) noexcept nogil:
    """Read the next partition of the response: OK, NO_MORE, SHORT or BAD."""
    cdef int status
    memset(out, 0, sizeof(brought_t))
    status = next_topic(a)
    if status != OK:
        return status
    out.topic = a.topic
    a.partitions_left -= 1
    status = read_partition(&a.at, out)
    if status == OK and a.partitions_left == 0:
        status = skip_tags(&a.at, True)
    return status
