"""Fetch, natively: request v4-17, answers that are ranges of log files, long polls that wait for an append.

What is not in order (an unknown partition, an offset outside the log, an epoch that is not ours, a fetch session, a
follower) goes to Python as it came. A request to begin a session is answered without one, which every client takes
(KIP-227). An answer ends at a batch boundary. A fetch that finds less than min_bytes watches its partitions, looks once
more, and parks; told of an append, or at its deadline, it is executed again from the bytes of its request.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc

from pybroker.core.atomic cimport load_i32
from pybroker.core.conn cimport PARKED, conn_add_file, conn_room, conn_t, conn_unwatch, conn_wrote, parked_t
from pybroker.core.cursor cimport (
    OK, cursor_init, cursor_left, cursor_t, read_i8, read_i32, read_i64, read_span, skip, store_be32,
    write_i16, write_i32, write_i64, write_span, writer_init, writer_t,
)
from pybroker.core.partition cimport (
    BOUND_HIGH_WATERMARK, notify_fn, partition_hold, partition_read, partition_watch,
)
from pybroker.core.produce cimport DECLINED, DONE, REFUSED, WAITS
from pybroker.core.registry cimport registry_by_id, registry_by_name, registry_t
from pybroker.core.segment cimport files_drop
from pybroker.core.wire cimport (
    header_t, read_header, read_length, read_tags, read_text, skip_tags, text_t, write_length, write_no_tags, write_text,
)

cdef enum:
    VERSION_MIN = 4
    VERSION_LOG_START = 5
    VERSION_SESSIONS = 7
    VERSION_EPOCH = 9
    VERSION_RACK = 11
    VERSION_FLEXIBLE = 12
    VERSION_IDS = 13
    VERSION_REPLICA_STATE = 15
    VERSION_MAX = 17
    ID_BYTES = 16
    PARTITION_BYTES = 4 + 2 + 8 + 8 + 8 + 4 + 4 + 5 + 1
    HEADER_BYTES_MAX = 64


cdef int read_topic(cursor_t* r, int16_t version, text_t* topic, int32_t* partitions) noexcept nogil:
    cdef int status
    if version >= VERSION_IDS:
        topic.length = ID_BYTES
        status = read_span(r, ID_BYTES, &topic.at)
    else:
        status = read_text(r, version >= VERSION_FLEXIBLE, topic)
    if status == OK and topic.at == NULL:
        return -1
    return status if status != OK else read_length(r, version >= VERSION_FLEXIBLE, partitions)


cdef int read_partition(cursor_t* r, int16_t version, int32_t* index, int32_t* epoch, int32_t* last_epoch, wanted_t* w) noexcept nogil:
    cdef int status = read_i32(r, index)
    epoch[0] = -1
    last_epoch[0] = -1
    if status == OK and version >= VERSION_EPOCH:
        status = read_i32(r, epoch)
    if status == OK:
        status = read_i64(r, &w.offset)
    if status == OK and version >= VERSION_FLEXIBLE:
        status = read_i32(r, last_epoch)
    if status == OK and version >= VERSION_LOG_START:
        status = skip(r, 8)      # a follower's log start
    if status == OK:
        status = read_i32(r, &w.most)
    return status if status != OK else skip_tags(r, version >= VERSION_FLEXIBLE)


cdef bint take_partition(fetch_t* f, registry_t* reg, cursor_t* r, const text_t* topic) noexcept nogil:
    """Read one partition of the request; False if Python must look at it."""
    cdef wanted_t* w = &f.wanted[f.count]
    cdef int32_t index = 0, epoch = -1, last_epoch = -1
    if f.count == FETCH_PARTITIONS_MAX or read_partition(r, f.version, &index, &epoch, &last_epoch, w) != OK:
        return False
    if f.version >= VERSION_IDS:
        w.partition = registry_by_id(reg, topic.at, index)
    else:
        w.partition = registry_by_name(reg, topic.at, topic.length, index)
    if w.partition == NULL or last_epoch >= 0 or w.most < 0:
        return False
    if epoch >= 0 and epoch != load_i32(&w.partition.leader_epoch):
        return False
    w.read.found.files = NULL
    f.count += 1
    f.answer_bytes += PARTITION_BYTES
    return True


cdef bint read_front(fetch_t* f, cursor_t* r) noexcept nogil:
    """Everything before the topics; False if Python must look at it."""
    cdef header_t header
    cdef int32_t replica = -1, session = 0, epoch = -1
    cdef int8_t isolation = 0
    cdef int status
    if read_header(r, f.version >= VERSION_FLEXIBLE, &header) != OK:
        return False
    f.correlation = header.correlation
    if f.version < VERSION_REPLICA_STATE and (read_i32(r, &replica) != OK or replica >= 0):
        return False
    status = read_i32(r, &f.max_wait_ms)
    if status == OK:
        status = read_i32(r, &f.min_bytes)
    if status == OK:
        status = read_i32(r, &f.max_bytes)
    if status == OK:
        status = read_i8(r, &isolation)
    if status == OK and f.version >= VERSION_SESSIONS:
        status = read_i32(r, &session)
        if status == OK:
            status = read_i32(r, &epoch)
    f.isolation = isolation
    if status != OK or session != 0 or epoch > 0 or isolation < 0 or isolation > 1 or f.max_bytes < 0:
        return False
    return True


cdef bint read_back(fetch_t* f, cursor_t* r) noexcept nogil:
    """Everything after the topics."""
    cdef bint flexible = f.version >= VERSION_FLEXIBLE
    cdef int32_t forgotten = 0
    cdef uint32_t tags = 0
    cdef text_t rack
    if f.version >= VERSION_SESSIONS and (read_length(r, flexible, &forgotten) != OK or forgotten > 0):
        return False
    if f.version >= VERSION_RACK and read_text(r, flexible, &rack) != OK:
        return False
    if flexible and (read_tags(r, &tags) != OK or tags > 0):
        return False             # a cluster id, or the state of a follower
    return cursor_left(r) == 0


cdef bint read_request(fetch_t* f, registry_t* reg, cursor_t* r) noexcept nogil:
    """Parse a whole request; False leaves it to Python."""
    cdef bint flexible = f.version >= VERSION_FLEXIBLE
    cdef text_t topic
    cdef int32_t partitions = 0, _i, _k
    f.count = 0
    f.answer_bytes = HEADER_BYTES_MAX
    if not read_front(f, r) or read_length(r, flexible, &f.topics) != OK or f.topics < 0:
        return False
    f.body = r.at
    f.end = r.end
    for _i in range(f.topics):
        if read_topic(r, f.version, &topic, &partitions) != OK or partitions < 0:
            return False
        f.answer_bytes += topic.length + 16
        for _k in range(partitions):
            if not take_partition(f, reg, r, &topic):
                return False
        if skip_tags(r, flexible) != OK:
            return False
    return read_back(f, r)


cdef void let_go(fetch_t* f) noexcept nogil:
    cdef int32_t i
    for i in range(f.count):
        if f.wanted[i].read.found.files != NULL:
            files_drop(f.wanted[i].read.found.files)
            f.wanted[i].read.found.files = NULL


cdef bint find(fetch_t* f, int64_t bytes_max) noexcept nogil:
    """Find what each partition can give, in order, within the limits; False if one of them has an error to tell.

    The first that has anything gives at least one whole batch, whatever the limits (KIP-74)."""
    cdef int64_t left = f.max_bytes if f.max_bytes < bytes_max else bytes_max
    cdef int64_t most
    cdef int32_t i
    f.found_bytes = 0
    for i in range(f.count):
        most = f.wanted[i].most if f.wanted[i].most < left else left
        if partition_read(
                f.wanted[i].partition, f.wanted[i].offset, most, BOUND_HIGH_WATERMARK + f.isolation,
                f.found_bytes == 0, &f.wanted[i].read) != 0:
            let_go(f)
            return False
        f.found_bytes += f.wanted[i].read.found.length
        left -= f.wanted[i].read.found.length
        if left < 0:
            left = 0
    return True


cdef int write_partition(fetch_t* f, conn_t* c, writer_t* w, uint8_t** room, wanted_t* p) noexcept nogil:
    """One partition of the answer. Records break the bytes: what follows goes on in a new piece of room."""
    cdef bint flexible = f.version >= VERSION_FLEXIBLE
    cdef int64_t left = w.end - w.at
    write_i32(w, p.partition.index)
    write_i16(w, 0)
    write_i64(w, p.read.view.high_watermark)
    write_i64(w, p.read.view.last_stable)
    if f.version >= VERSION_LOG_START:
        write_i64(w, p.read.view.log_start)
    write_length(w, flexible, 0 if f.isolation else -1)      # aborted_transactions: null unless asked for
    if f.version >= VERSION_RACK:
        write_i32(w, -1)         # preferred_read_replica
    write_length(w, flexible, <int32_t>p.read.found.length)
    if p.read.found.files != NULL:
        conn_wrote(c, w.at - room[0])
        left = w.end - w.at
        if conn_add_file(c, p.partition.log, &p.read.found, p.read.generation) < 0:
            return REFUSED
        p.read.found.files = NULL
        room[0] = conn_room(c, left)
        if room[0] == NULL:
            return REFUSED
        writer_init(w, room[0], left)
    write_no_tags(w, flexible)
    return DONE


cdef int write_answer(fetch_t* f, conn_t* c) noexcept nogil:
    """The whole answer into the connection's output, the ranges of files among it."""
    cdef bint flexible = f.version >= VERSION_FLEXIBLE
    cdef uint8_t* room = conn_room(c, f.answer_bytes)
    cdef uint8_t* size_at = room
    cdef int64_t before = c.queued_bytes
    cdef cursor_t r
    cdef writer_t w
    cdef text_t topic
    cdef wanted_t ignored
    cdef int32_t partitions = 0, index = 0, epoch = 0, last = 0, _i, _k, n = 0
    if room == NULL:
        return REFUSED
    writer_init(&w, room, f.answer_bytes)
    write_i32(&w, 0)
    write_i32(&w, f.correlation)
    write_no_tags(&w, flexible)
    write_i32(&w, 0)             # throttle_time_ms
    if f.version >= VERSION_SESSIONS:
        write_i16(&w, 0)
        write_i32(&w, 0)         # no session
    write_length(&w, flexible, f.topics)
    cursor_init(&r, f.body, f.end - f.body)
    for _i in range(f.topics):
        read_topic(&r, f.version, &topic, &partitions)
        if f.version >= VERSION_IDS:
            write_span(&w, topic.at, ID_BYTES)
        else:
            write_text(&w, flexible, &topic)
        write_length(&w, flexible, partitions)
        for _k in range(partitions):
            read_partition(&r, f.version, &index, &epoch, &last, &ignored)
            if write_partition(f, c, &w, &room, &f.wanted[n]) != DONE:
                return REFUSED
            n += 1
        skip_tags(&r, flexible)
        write_no_tags(&w, flexible)
    write_no_tags(&w, flexible)
    conn_wrote(c, w.at - room)
    store_be32(size_at, <int32_t>(c.queued_bytes - before - 4))
    return DONE


cdef int park(fetch_t* f, conn_t* c, notify_fn notify) noexcept nogil:
    """Watch every partition of the request."""
    cdef int32_t i
    c.parked = <parked_t*>calloc(f.count, sizeof(parked_t))
    if c.parked == NULL:
        return REFUSED
    c.parked_count = f.count
    for i in range(f.count):
        partition_hold(f.wanted[i].partition)
        c.parked[i].held = f.wanted[i].partition
        c.parked[i].watch.notify = notify
        c.parked[i].watch.owner = c
        partition_watch(f.wanted[i].partition, &c.parked[i].watch)
    return WAITS


cdef int fetch(
    fetch_t* f, registry_t* reg, conn_t* c, cursor_t* r, int16_t version, int64_t bytes_max, int64_t now_ms,
    notify_fn notify) noexcept nogil:
    """Execute one Fetch request, the cursor standing behind its api version; again, when it was parked. Pinned."""
    cdef bint again = c.state == PARKED
    cdef int status
    f.version = version
    if version < VERSION_MIN or version > VERSION_MAX or not read_request(f, reg, r) or not find(f, bytes_max):
        return DECLINED
    if f.found_bytes < f.min_bytes and f.max_wait_ms > 0 and f.count > 0 and not (again and now_ms >= c.deadline_ms):
        let_go(f)
        conn_unwatch(c)
        status = park(f, c, notify)
        if not again:
            c.deadline_ms = now_ms + f.max_wait_ms
        if status != WAITS or not find(f, bytes_max):
            return REFUSED if status != WAITS else DECLINED
        if f.found_bytes < f.min_bytes:
            let_go(f)
            return WAITS
    status = write_answer(f, c)
    let_go(f)
    return status
