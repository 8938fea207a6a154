"""The encoding of Fetch v4-18: decoding a request, and encoding a response.

A request is decoded completely before anything is done. A malformed request is not executed; one that is well formed
but cannot be handled here (an unknown partition, a follower's state) is `foreign`. A response groups neighbours of one
topic, as Kafka's does; its records are ranges of log files between pieces of bytes. Short ranges are copied instead: a
call of sendfile for each would cost more than copying, and a small response fits into one packet.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport malloc, realloc
from libc.string cimport memcmp, memset

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.chain cimport link_t
from pybroker.core.base.cursor cimport (
    OK, VARINT_BYTES_MAX, cursor_init, cursor_left, cursor_t, read_i32, read_i64, read_i8, read_span, read_uvarint,
    skip, store_be32, write_i16, write_i32, write_i64, write_span, write_uvarlong, writer_init, writer_t,
)
from pybroker.core.base.error_codes cimport NOT_LEADER_OR_FOLLOWER
from pybroker.core.base.frame cimport AT_CORRELATION_ID, SIZE_BYTES
from pybroker.core.base.protocol cimport (
    FETCH_BYTES_ABORTED_TRANSACTIONS, FETCH_BYTES_DIVERGING_EPOCH, FETCH_BYTES_TOPICS, FETCH_REQUEST_BYTES_PARTITIONS,
    FETCH_RESPONSE_BYTES_PARTITIONS,
    FETCH_TAG_CURRENT_LEADER, FETCH_TAG_DIVERGING_EPOCH, FETCH_TAG_REPLICA_STATE, FETCH_VERSION_CURRENT_LEADER_EPOCH,
    FETCH_VERSION_FLEXIBLE, FETCH_VERSION_LAST_FETCHED_EPOCH, FETCH_VERSION_LOG_START_OFFSET,
    FETCH_VERSION_NODE_ENDPOINTS, FETCH_VERSION_PREFERRED_READ_REPLICA, FETCH_VERSION_RACK_ID,
    FETCH_VERSION_REPLICA_STATE, FETCH_VERSION_SESSION_ID, FETCH_VERSION_TOPIC_ID, FETCH_VERSION_ZSTD,
)
from pybroker.core.partition.partition cimport TOPIC_ID_BYTES, partition_t
from pybroker.core.partition.registry cimport registry_by_id, registry_by_name, registry_t
from pybroker.core.plane.connection.conn cimport conn_add_file, conn_copy_file, conn_room, conn_t, conn_wrote
from pybroker.core.plane.requests.fetch_aborts cimport write_aborts
from pybroker.core.plane.requests.fetch_session cimport session_forget, session_t, tracked_t
from pybroker.core.plane.requests.nodes cimport (
    CURRENT_LEADER_BYTES, leaders_add, leaders_bytes, write_current_leader, write_leaders,
)
from pybroker.core.plane.requests.verdict cimport DONE, REFUSED, verdict_t
from pybroker.core.plane.requests.wire cimport (
    read_header, read_length, read_text, read_topic, skip_tags, text_t, write_length, write_no_tags, write_text,
)

cdef enum:
    WANTED_MIN = 16
    NEIGHBOURS = 16              # compared with so many neighbours, to find a partition that is named twice
    PARTITION_BYTES = FETCH_RESPONSE_BYTES_PARTITIONS + 1 + 1 + FETCH_BYTES_DIVERGING_EPOCH
    ANSWER_BYTES = 64            # without its topics, at most
    COPIED_BYTES_MAX = 32 << 10  # copied of one partition's records at most,
    COPIES_BYTES_MAX = 128 << 10 # and for one response


# -- the request -------------------------------------------------------------------------------------------------------

cdef struct named_t:             # a partition as decoded from the request
    int32_t index
    int32_t leader_epoch
    int32_t last_epoch
    int32_t most
    int64_t offset, log_start    # the latter for followers


cdef int read_partition(cursor_t* r, int16_t version, named_t* out) noexcept nogil:
    cdef int status
    out.index = 0
    out.leader_epoch = out.last_epoch = out.log_start = -1
    status = read_i32(r, &out.index)
    if status == OK and version >= FETCH_VERSION_CURRENT_LEADER_EPOCH:
        status = read_i32(r, &out.leader_epoch)
    if status == OK:
        status = read_i64(r, &out.offset)
    if status == OK and version >= FETCH_VERSION_LAST_FETCHED_EPOCH:
        status = read_i32(r, &out.last_epoch)
    if status == OK and version >= FETCH_VERSION_LOG_START_OFFSET:
        status = read_i64(r, &out.log_start)
    if status == OK:
        status = read_i32(r, &out.most)
    return status if status != OK else skip_tags(r, version >= FETCH_VERSION_FLEXIBLE)


cdef wanted_t* fetch_add(fetch_t* f) noexcept nogil:
    """Add one partition to the fetch, in order; NULL beyond WANTED_MAX or without memory."""
    cdef int32_t n = 2 * f.capacity if f.capacity else WANTED_MIN
    cdef wanted_t* larger
    if f.count == f.capacity:
        larger = <wanted_t*>realloc(f.wanted, sizeof(wanted_t) * n) if n <= WANTED_MAX else NULL
        if larger == NULL:
            return NULL
        f.wanted = larger
        f.capacity = n
    memset(&f.wanted[f.count], 0, sizeof(wanted_t))
    f.count += 1
    return &f.wanted[f.count - 1]


cdef bint is_new(const fetch_t* f, const partition_t* p) noexcept nogil:
    """True if a partition is not among the last ones. One that is named twice, far apart, is returned twice."""
    cdef int32_t i
    for i in range(max(0, f.count - NEIGHBOURS), f.count):
        if f.wanted[i].partition == p:
            return False
    return True


cdef bint take_partition(fetch_t* f, registry_t* reg, cursor_t* r, const text_t* topic) noexcept nogil:
    """Decode one partition of the request; False if it is malformed."""
    cdef named_t named
    cdef partition_t* p = NULL
    cdef wanted_t* w = NULL
    if read_partition(r, f.version, &named) != OK:
        return False
    if f.version >= FETCH_VERSION_TOPIC_ID:
        p = registry_by_id(reg, topic.at, named.index)
    else:
        p = registry_by_name(reg, topic.at, topic.length, named.index)
    if p != NULL and f.version < FETCH_VERSION_ZSTD and not load_i32(&p.native_append):
        p = NULL                 # its records may have a compression that the client cannot read
    if p != NULL and named.most >= 0 and is_new(f, p):
        w = fetch_add(f)
    if w == NULL:
        f.foreign = 1
        return True
    w.partition = p
    w.offset = named.offset
    w.most = named.most
    w.leader_epoch = named.leader_epoch
    w.last_epoch = named.last_epoch
    w.log_start = named.log_start
    return True


cdef bint read_front(fetch_t* f, cursor_t* r) noexcept nogil:
    """Decode everything before the topics; False if it is malformed."""
    cdef int8_t isolation = 0
    cdef int status = read_header(r, f.version >= FETCH_VERSION_FLEXIBLE, &f.correlation)
    f.replica = f.replica_epoch = -1
    if status == OK and f.version < FETCH_VERSION_REPLICA_STATE:
        status = read_i32(r, &f.replica)
    f.wait_at = r.at
    if status == OK:
        status = read_i32(r, &f.max_wait_ms)
    if status == OK:
        status = read_i32(r, &f.min_bytes)
    if status == OK:
        status = read_i32(r, &f.max_bytes)
    if status == OK:
        status = read_i8(r, &isolation)
    f.session_id, f.session_epoch = 0, -1
    f.session_at = NULL
    if status == OK and f.version >= FETCH_VERSION_SESSION_ID:
        f.session_at = r.at
        status = read_i32(r, &f.session_id)
        if status == OK:
            status = read_i32(r, &f.session_epoch)
    if status != OK:
        return False
    f.isolation = isolation
    f.foreign = f.replica < -1 or isolation < 0 or isolation > 1 or f.max_bytes < 0
    return True


cdef bint read_forgotten(fetch_t* f, cursor_t* r) noexcept nogil:
    cdef bint flexible = f.version >= FETCH_VERSION_FLEXIBLE
    cdef text_t topic
    cdef int32_t partitions = 0, _i
    f.forgotten = 0
    if f.version >= FETCH_VERSION_SESSION_ID and (read_length(r, flexible, &f.forgotten) != OK or f.forgotten < 0):
        return False
    f.forgotten_body.at = r.at
    for _i in range(f.forgotten):
        if read_topic(r, f.version >= FETCH_VERSION_TOPIC_ID, flexible, &topic, &partitions) != OK or partitions < 0:
            return False
        if skip(r, 4 * <int64_t>partitions) != OK or skip_tags(r, flexible) != OK:
            return False
    f.forgotten_body.end = r.at
    return True


cdef bint read_replica_state(fetch_t* f, const uint8_t* at, uint32_t n) noexcept nogil:
    cdef cursor_t r
    cursor_init(&r, at, n)
    if read_i32(&r, &f.replica) != OK or read_i64(&r, &f.replica_epoch) != OK or skip_tags(&r, True) != OK:
        return False
    f.foreign |= f.replica < -1
    return cursor_left(&r) == 0


cdef bint read_request_tags(fetch_t* f, cursor_t* r) noexcept nogil:
    """Decode the tags: the replica state. A cluster id and unknown tags go to Python. False if they are malformed."""
    cdef uint32_t _i, count = 0, tag = 0, size = 0
    cdef const uint8_t* at = NULL
    if read_uvarint(r, &count) != OK:
        return False
    for _i in range(count):
        if read_uvarint(r, &tag) != OK or read_uvarint(r, &size) != OK or read_span(r, size, &at) != OK:
            return False
        if tag != FETCH_TAG_REPLICA_STATE or f.version < FETCH_VERSION_REPLICA_STATE:
            f.foreign = 1
        elif not read_replica_state(f, at, size):
            return False
    return True


cdef bint read_back(fetch_t* f, cursor_t* r) noexcept nogil:
    """Decode everything after the topics; False if it is malformed."""
    cdef bint flexible = f.version >= FETCH_VERSION_FLEXIBLE
    f.rack.length = 0
    if not read_forgotten(f, r):
        return False
    if f.version >= FETCH_VERSION_RACK_ID and (read_text(r, flexible, &f.rack) != OK or f.rack.at == NULL):
        return False
    return (not flexible or read_request_tags(f, r)) and cursor_left(r) == 0


cdef bint fetch_read(fetch_t* f, registry_t* reg, cursor_t* r, int16_t version) noexcept nogil:
    """Decode a whole request, with the cursor after its api version; False if it is malformed. Pinned."""
    cdef bint flexible = version >= FETCH_VERSION_FLEXIBLE
    cdef text_t topic
    cdef int32_t partitions = 0, _i, _k
    f.version = version
    f.count = f.throttle_ms = 0
    f.frame.at = r.at - AT_CORRELATION_ID
    f.frame.end = r.end
    if not read_front(f, r) or read_length(r, flexible, &f.topics) != OK or f.topics < 0:
        return False
    f.body.at = r.at
    for _i in range(f.topics):
        if read_topic(r, version >= FETCH_VERSION_TOPIC_ID, flexible, &topic, &partitions) != OK or partitions < 0:
            return False
        for _k in range(partitions):
            if not take_partition(f, reg, r, &topic):
                return False
        if skip_tags(r, flexible) != OK:
            return False
    f.body.end = r.at
    return read_back(f, r)


cdef void fetch_forget(const fetch_t* f, session_t* s) noexcept nogil:
    """Remove from a session the partitions that the request forgets."""
    cdef text_t topic
    cdef int32_t partitions = 0, index = 0, _i, _k
    cdef cursor_t r
    cursor_init(&r, f.forgotten_body.at, f.forgotten_body.end - f.forgotten_body.at)
    for _i in range(f.forgotten):
        read_topic(&r, f.version >= FETCH_VERSION_TOPIC_ID, f.version >= FETCH_VERSION_FLEXIBLE, &topic, &partitions)
        for _k in range(partitions):
            read_i32(&r, &index)
            session_forget(s, topic.at, topic.length, index)
        skip_tags(&r, f.version >= FETCH_VERSION_FLEXIBLE)


# -- the request without its session -----------------------------------------------------------------------------------

cdef void forget_named(const fetch_t* f, session_t* s) noexcept nogil:
    """Remove from a session the partitions that the request itself names."""
    cdef text_t topic
    cdef named_t named
    cdef int32_t partitions = 0, _i, _k
    cdef cursor_t r
    cursor_init(&r, f.body.at, f.body.end - f.body.at)
    for _i in range(f.topics):
        read_topic(&r, f.version >= FETCH_VERSION_TOPIC_ID, f.version >= FETCH_VERSION_FLEXIBLE, &topic, &partitions)
        for _k in range(partitions):
            read_partition(&r, f.version, &named)
            session_forget(s, topic.at, topic.length, named.index)
        skip_tags(&r, f.version >= FETCH_VERSION_FLEXIBLE)


cdef bint same_topic(const partition_t* a, const partition_t* b) noexcept nogil:
    return a.topic_length == b.topic_length and memcmp(a.topic, b.topic, a.topic_length) == 0


cdef void write_topic(writer_t* w, int16_t version, const partition_t* p) noexcept nogil:
    cdef text_t name
    if version >= FETCH_VERSION_TOPIC_ID:
        write_span(w, p.topic_id, TOPIC_ID_BYTES)
    else:
        name.at = <const uint8_t*>p.topic
        name.length = p.topic_length
        write_text(w, version >= FETCH_VERSION_FLEXIBLE, &name)


cdef link_t* end_of_run(link_t* link, int32_t* n) noexcept nogil:
    """Count tracked neighbours of one topic; the first of the next topic."""
    cdef const partition_t* p = (<tracked_t*>link.owner).partition
    n[0] = 0
    while link != NULL and same_topic((<tracked_t*>link.owner).partition, p):
        link = link.next
        n[0] += 1
    return link


cdef link_t* write_run(writer_t* w, int16_t version, link_t* link) noexcept nogil:
    """Encode tracked neighbours of one topic as in a request; the first of the next topic."""
    cdef bint flexible = version >= FETCH_VERSION_FLEXIBLE
    cdef int32_t n = 0
    cdef link_t* end = end_of_run(link, &n)
    cdef tracked_t* t = <tracked_t*>link.owner
    write_topic(w, version, t.partition)
    write_length(w, flexible, n)
    while link != end:
        t = <tracked_t*>link.owner
        write_i32(w, t.partition.index)
        if version >= FETCH_VERSION_CURRENT_LEADER_EPOCH:
            write_i32(w, t.leader_epoch)
        write_i64(w, t.offset)
        if version >= FETCH_VERSION_LAST_FETCHED_EPOCH:
            write_i32(w, t.last_epoch)
        write_i64(w, -1)
        write_i32(w, t.most)
        write_no_tags(w, flexible)
        link = link.next
    write_no_tags(w, flexible)
    return end


cdef uint8_t* fetch_without_session(const fetch_t* f, session_t* s, int64_t* n) noexcept nogil:
    """Encode the request as a full one without a session, for Python, which knows no sessions; partitions that the
    request names are removed from `s`. Its frame, which the caller frees, and its length; NULL without memory."""
    cdef bint flexible = f.version >= FETCH_VERSION_FLEXIBLE
    cdef int64_t room = f.frame.end - f.frame.at + 2 * VARINT_BYTES_MAX
    cdef int32_t runs = 0, length = 0
    cdef link_t* link = NULL
    cdef uint8_t* out
    cdef writer_t w
    if s != NULL:
        forget_named(f, s)
        fetch_forget(f, s)
        link = s.tracked.first
    while link != NULL:
        room += (<tracked_t*>link.owner).partition.topic_length + FETCH_BYTES_TOPICS
        link = end_of_run(link, &length)
        room += length * FETCH_REQUEST_BYTES_PARTITIONS
        runs += 1
    out = <uint8_t*>malloc(room)
    if out == NULL:
        return NULL
    writer_init(&w, out, room)
    write_span(&w, f.frame.at, f.session_at - f.frame.at)
    write_i32(&w, 0)
    write_i32(&w, -1)
    write_length(&w, flexible, f.topics + runs)
    link = s.tracked.first if s != NULL else NULL
    while link != NULL:
        link = write_run(&w, f.version, link)
    write_span(&w, f.body.at, f.body.end - f.body.at)
    write_length(&w, flexible, 0)
    write_span(&w, f.forgotten_body.end, f.frame.end - f.forgotten_body.end)
    n[0] = w.at - out
    return out


# -- the response ------------------------------------------------------------------------------------------------------

cdef bint begins_topic(const fetch_t* f, int32_t i) noexcept nogil:
    return i == 0 or not same_topic(f.wanted[i - 1].partition, f.wanted[i].partition)


cdef int64_t bytes_from(const fetch_t* f, int32_t i) noexcept nogil:
    """The most bytes that the response has from partition i up to the next records, or to its end."""
    cdef int64_t n = ANSWER_BYTES + leaders_bytes(&f.leaders)  # before the partitions, and after them
    while i < f.count:
        n += PARTITION_BYTES + (CURRENT_LEADER_BYTES if f.wanted[i].error == NOT_LEADER_OR_FOLLOWER else 0)
        n += f.wanted[i].aborts_count * FETCH_BYTES_ABORTED_TRANSACTIONS
        if begins_topic(f, i):
            n += f.wanted[i].partition.topic_length + FETCH_BYTES_TOPICS
        if f.wanted[i].read.found.files != NULL:
            if not f.wanted[i].copied:
                break
            n += f.wanted[i].read.found.length
        i += 1
    return n


cdef void choose_copies(fetch_t* f) noexcept nogil:
    """Choose the partitions whose records are copied into the response."""
    cdef int64_t left = COPIES_BYTES_MAX, length
    cdef int32_t i
    for i in range(f.count):
        length = f.wanted[i].read.found.length
        f.wanted[i].copied = length <= min(left, <int64_t>COPIED_BYTES_MAX)
        if f.wanted[i].copied:
            left -= length


cdef void write_diverging_epoch(writer_t* w, const wanted_t* p) noexcept nogil:
    """Write a section of one tag (KIP-595)."""
    write_uvarlong(w, 1)
    write_uvarlong(w, FETCH_TAG_DIVERGING_EPOCH)
    write_uvarlong(w, FETCH_BYTES_DIVERGING_EPOCH)
    write_i32(w, p.diverging_epoch)
    write_i64(w, p.diverging_end)
    write_no_tags(w, True)


cdef verdict_t write_partition(fetch_t* f, conn_t* c, writer_t* w, uint8_t** room, int32_t i) noexcept nogil:
    """Encode one partition of the response. After a range of a file the encoding continues in new room."""
    cdef bint flexible = f.version >= FETCH_VERSION_FLEXIBLE
    cdef wanted_t* p = &f.wanted[i]
    cdef int64_t left
    write_i32(w, p.partition.index)
    write_i16(w, <int16_t>p.error)
    write_i64(w, p.read.view.high_watermark)
    write_i64(w, p.read.view.last_stable)
    if f.version >= FETCH_VERSION_LOG_START_OFFSET:
        write_i64(w, p.read.view.log_start)
    write_aborts(w, f.aborts.items + p.aborts_from, p.aborts_count if f.isolation and not p.error else -1, flexible)
    if f.version >= FETCH_VERSION_PREFERRED_READ_REPLICA:
        write_i32(w, -1)         # preferred_read_replica
    write_length(w, flexible, <int32_t>p.read.found.length)
    if p.copied and conn_copy_file(c, p.partition.log, &p.read.found, p.read.generation, w.at):
        w.at += p.read.found.length
        p.read.found.files = NULL
    if p.read.found.files != NULL:
        conn_wrote(c, w.at - room[0])
        left = bytes_from(f, i + 1)
        if conn_add_file(c, p.partition.log, &p.read.found, p.read.generation) < 0:
            return REFUSED
        p.read.found.files = NULL
        room[0] = conn_room(c, left)
        if room[0] == NULL:
            return REFUSED
        writer_init(w, room[0], left)
    if flexible and p.error == NOT_LEADER_OR_FOLLOWER:
        write_current_leader(w, FETCH_TAG_CURRENT_LEADER, p.leader, p.led_epoch)
    elif flexible and p.diverges:
        write_diverging_epoch(w, p)
    else:
        write_no_tags(w, flexible)
    return DONE


cdef int32_t run_length(const fetch_t* f, int32_t i) noexcept nogil:
    cdef int32_t end = i + 1
    while end < f.count and not begins_topic(f, end):
        end += 1
    return end - i


cdef int32_t count_topics(const fetch_t* f) noexcept nogil:
    cdef int32_t i, n = 0
    for i in range(f.count):
        n += begins_topic(f, i)
    return n


cdef void name_leaders(fetch_t* f, int32_t listener) noexcept nogil:
    """Name the leaders of partitions that are not led here."""
    cdef int32_t i
    f.leaders.count = 0
    for i in range(f.count if f.version >= FETCH_VERSION_NODE_ENDPOINTS else 0):
        if f.wanted[i].error == NOT_LEADER_OR_FOLLOWER:
            leaders_add(&f.leaders, listener, f.wanted[i].leader)


cdef verdict_t fetch_answer(fetch_t* f, conn_t* c, int error, int32_t session_id) noexcept nogil:
    """Encode the whole response into the connection's output: an error of the request, or each partition."""
    cdef bint flexible = f.version >= FETCH_VERSION_FLEXIBLE
    cdef int32_t i
    cdef int64_t most, before = c.output.queued
    cdef uint8_t* room
    cdef uint8_t* size_at
    cdef writer_t w
    name_leaders(f, c.listener)
    choose_copies(f)
    most = bytes_from(f, 0)
    room = size_at = conn_room(c, most)
    if room == NULL:
        return REFUSED
    writer_init(&w, room, most)
    write_i32(&w, 0)
    write_i32(&w, f.correlation)
    write_no_tags(&w, flexible)
    write_i32(&w, <int32_t>f.throttle_ms)
    if f.version >= FETCH_VERSION_SESSION_ID:
        write_i16(&w, <int16_t>error)
        write_i32(&w, session_id)
    write_length(&w, flexible, count_topics(f))
    for i in range(f.count):
        if begins_topic(f, i):
            if i > 0:
                write_no_tags(&w, flexible)
            write_topic(&w, f.version, f.wanted[i].partition)
            write_length(&w, flexible, run_length(f, i))
        if write_partition(f, c, &w, &room, i) != DONE:
            return REFUSED
    if f.count > 0:
        write_no_tags(&w, flexible)
    if f.version >= FETCH_VERSION_NODE_ENDPOINTS:
        write_leaders(&w, &f.leaders)
    else:
        write_no_tags(&w, flexible)
    conn_wrote(c, w.at - room)
    store_be32(size_at, <int32_t>(c.output.queued - before - SIZE_BYTES))
    return DONE
