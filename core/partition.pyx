"""Partitions: what an append must pass, what a read may see.

One writer at a time: the CRC is checked before the append mutex is taken; under it come the leader's epoch, the producer's
sequence, the roll, one pwritev, the accounting, and the watermarks. A batch is stamped into a copy of its header, which
goes out in front of the untouched rest: the caller's bytes are never written to.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from pybroker.core.atomic cimport add_i32, load_i32, load_i64, load_ptr, peek_i64, store_i32, store_ptr
from pybroker.core.batch cimport (
    CONTROL, HEADER_BYTES, TRANSACTIONAL, batch_check, batch_last_offset, batch_stamp, batch_stamp_time, batch_t,
)
from pybroker.core.chain cimport chain_append, chain_remove
from pybroker.core.counters cimport tally
from pybroker.core.cursor cimport SHORT
from pybroker.core.epochs cimport epochs_assign
from pybroker.core.kafka cimport (
    CORRUPT_MESSAGE, FENCED_LEADER_EPOCH, INVALID_RECORD, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE,
    RECORD_LIST_TOO_LARGE, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION,
)
from pybroker.core.log cimport (
    log_active, log_drop, log_find_largest, log_find_time, log_must_roll, log_offline, log_publish, log_read, log_roll,
    log_t, log_view, log_write, placed_t, segments_t, view_t,
)
from pybroker.core.producers cimport producers_see
from pybroker.core.quiesce cimport (
    pin, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, unpin,
)
from pybroker.core.segment cimport files_drop
from pybroker.core.sequence cimport (
    DUPLICATE, producer_t, seen_t, sequence_begin, sequence_check, sequence_find, sequence_first_open,
    sequence_put_back,
)
from pybroker.core.vfs cimport P_APPEND_AFTER, P_APPEND_BEFORE, iovec, vfs_pass


cdef enum:
    GATHER_MAX = 64          # batches in one call; more go out in several
    AGAIN = -100002          # a status: look once more


cdef partition_t* partition_new(log_t* l) noexcept nogil:
    """A partition that owns the caller's hold on a log; its only reference is the caller's."""
    cdef partition_t* p = <partition_t*>calloc(1, sizeof(partition_t))
    if p == NULL:
        return NULL
    p.refs = 1
    p.log = l
    p.leader_epoch = -1
    p.lease_deadline_ms = (<int64_t>1) << 62
    pthread_mutex_init(&p.watch_mutex, NULL)
    return p


cdef void partition_hold(partition_t* p) noexcept nogil:
    add_i32(&p.refs, 1)


cdef void partition_drop(void* partition) noexcept nogil:
    cdef partition_t* p = <partition_t*>partition
    if add_i32(&p.refs, -1) > 0:
        return
    log_drop(p.log)
    pthread_mutex_destroy(&p.watch_mutex)
    free(p)


cdef void partition_watch(partition_t* p, watch_t* w) noexcept nogil:
    """Be told of the next append. The watcher looks once more after this call: what came before is not told.

    The watcher keeps the partition alive, and takes its watch back before it goes. Who watches already goes on to."""
    pthread_mutex_lock(&p.watch_mutex)
    if w.partition == NULL:
        chain_append(&p.watches, &w.link, w)
        store_ptr(<void**>&w.partition, p)
        add_i32(&p.watched, 1)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void unlink_watch(partition_t* p, watch_t* w) noexcept nogil:
    """From the last store on its watcher may free it."""
    chain_remove(&w.link)
    add_i32(&p.watched, -1)
    store_ptr(<void**>&w.partition, NULL)


cdef void partition_unwatch(watch_t* w) noexcept nogil:
    """Take a watch back, whether it was told or not."""
    cdef partition_t* p = <partition_t*>load_ptr(<void**>&w.partition)
    if p == NULL:
        return
    pthread_mutex_lock(&p.watch_mutex)
    if w.partition != NULL:
        unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef void partition_tell(partition_t* p) noexcept nogil:
    """Tell every watcher, once. Called after an append was published, and when the partition goes."""
    cdef watch_t* w
    if load_i32(&p.watched) == 0:
        return
    pthread_mutex_lock(&p.watch_mutex)
    while p.watches.first != NULL:
        w = <watch_t*>p.watches.first.owner
        w.notify(w)              # first: who finds itself unlinked need not wait for this mutex
        unlink_watch(p, w)
    pthread_mutex_unlock(&p.watch_mutex)


cdef int check_epoch(partition_t* p, int32_t leader_epoch) noexcept nogil:
    if leader_epoch < 0 or leader_epoch == p.leader_epoch:
        return 0
    return FENCED_LEADER_EPOCH if leader_epoch < p.leader_epoch else UNKNOWN_LEADER_EPOCH


cdef int check_producer(log_t* l, const batch_t* b, appended_t* out) noexcept nogil:
    """The sequence rules; DUPLICATE with the original's offsets filled in."""
    cdef seen_t seen
    cdef int status
    if b.producer_id < 0:
        return 0
    status = sequence_check(&l.producers, b.producer_id, b.producer_epoch, b.base_sequence, b.last_offset_delta, &seen)
    if status == DUPLICATE:
        out.base_offset = seen.last_offset - seen.offset_delta
        out.last_offset = seen.last_offset
        out.log_append_time_ms = seen.timestamp if l.settings.message_timestamp_type else -1
        out.duplicate = True
    return status


cdef void remember(log_t* l, int64_t id, producer_t* before) noexcept nogil:
    """Keep what a producer was, in case the write of its next batch fails."""
    cdef const producer_t* p = sequence_find(&l.producers, id) if id >= 0 else NULL
    if p != NULL:
        before[0] = p[0]
    else:
        before.id = -1


cdef void undo(log_t* l, const batch_t* b, const producer_t* before) noexcept nogil:
    """The batch of a producer was not written. If it was the first, the second is not to be taken for it."""
    if b.producer_id < 0:
        return
    sequence_put_back(&l.producers, b.producer_id, before if before.id >= 0 else NULL)
    if before.id < 0 and b.base_sequence == 0:
        sequence_begin(&l.producers, b.producer_id, b.producer_epoch)


cdef int account(log_t* l, const batch_t* b) noexcept nogil:
    """The producer's window and the leader epoch, for a batch that has its place."""
    cdef int status = 0
    if b.producer_id >= 0:
        status = producers_see(&l.producers, b)
    return status if status != 0 else epochs_assign(&l.epochs, b.leader_epoch, b.base_offset)


cdef void publish_end(log_t* l, int64_t end, bint transactions) noexcept nogil:
    """Show readers what is written. With one replica the high watermark is the log's end."""
    cdef view_t v = l.view
    cdef int64_t open_ = -1
    v.log_end = end
    v.active_base = log_active(l).base_offset
    v.active_size = log_active(l).size
    v.high_watermark = end
    if transactions or l.view.last_stable < l.view.high_watermark:
        open_ = sequence_first_open(&l.producers)
    v.last_stable = end if open_ < 0 else open_
    log_publish(l, &v)


cdef struct gather_t:        # stamped batches that go out in one call
    iovec v[2 * <int>GATHER_MAX]
    placed_t placed[<int>GATHER_MAX]
    ready_t* ready[<int>GATHER_MAX]
    producer_t before[<int>GATHER_MAX]   # what each batch's producer was before it; id -1: unknown
    int vectors
    int count
    int64_t bytes
    int64_t start            # offset of the first


cdef void write_gathered(partition_t* p, gather_t* g, int64_t* end) noexcept nogil:
    """Write what is gathered and show it; or fail all of it, and forget that its producers wrote it."""
    cdef log_t* l = p.log
    cdef bint transactions = False
    cdef int i, status
    if g.count == 0:
        return
    status = log_write(l, g.v, g.vectors, g.placed, g.count, g.bytes)
    for i in range(g.count):
        g.ready[i].status = status
        transactions |= (g.ready[i].batch.attributes & (TRANSACTIONAL | CONTROL)) != 0
    if status == 0:
        publish_end(l, end[0], transactions)
        tally(&l.traffic.batches_in, g.count)
        tally(&l.traffic.records_in, end[0] - g.start)
        tally(&l.traffic.bytes_in, g.bytes)
    else:
        end[0] = g.start
        for i in range(g.count - 1, -1, -1):
            undo(l, &g.ready[i].batch, &g.before[i])
    g.count = g.vectors = 0
    g.bytes = 0
    g.start = end[0]


cdef void gather(gather_t* g, ready_t* r) noexcept nogil:
    cdef iovec* v = &g.v[g.vectors]
    v[0].iov_base, v[0].iov_len = r.header, HEADER_BYTES
    v[1].iov_base, v[1].iov_len = <void*>(r.batch.at + HEADER_BYTES), r.batch.size - HEADER_BYTES
    g.vectors += 2 if v[1].iov_len else 1
    g.placed[g.count].bytes = r.batch.size
    g.placed[g.count].last_offset = r.out.last_offset
    g.placed[g.count].max_timestamp = r.batch.max_timestamp
    g.ready[g.count] = r
    g.count += 1
    g.bytes += r.batch.size


cdef void stamp(partition_t* p, ready_t* r, int64_t offset, int64_t now_ms) noexcept nogil:
    """Give a batch its place: offset, leader epoch and, with LogAppendTime, the time."""
    if p.log.settings.message_timestamp_type:
        batch_stamp_time(&r.batch, offset, p.leader_epoch, now_ms, r.header)
        r.out.log_append_time_ms = now_ms
        r.batch.max_timestamp = now_ms
    else:
        batch_stamp(&r.batch, offset, p.leader_epoch, r.header)
    r.batch.base_offset = offset
    r.batch.leader_epoch = p.leader_epoch
    r.out.base_offset = offset
    r.out.last_offset = batch_last_offset(&r.batch)


cdef int admit(partition_t* p, ready_t* r) noexcept nogil:
    """What can only be known under the append mutex: is the log there, is the epoch right, does the sequence follow?"""
    cdef log_t* l = p.log
    cdef int status
    r.out.log_start = l.view.log_start
    if load_i32(&l.deleted):
        return UNKNOWN_TOPIC_OR_PARTITION
    if log_offline(l):
        return KAFKA_STORAGE_ERROR
    status = check_epoch(p, r.leader_epoch)
    if status == 0 and r.source == FROM_CLIENT:
        status = check_producer(l, &r.batch, &r.out)
    return status


cdef void take(partition_t* p, ready_t* r, int64_t end, int64_t now_ms) noexcept nogil:
    """See whether a batch may be appended at `end`, and give it that place."""
    r.out.duplicate = False
    r.status = admit(p, r)
    if r.status == 0:
        stamp(p, r, end, now_ms)


cdef bint must_write_before(log_t* l, const gather_t* g, const ready_t* r, int64_t now_ms) noexcept nogil:
    """Is what became of the gathered batches to be known before this one is looked at?"""
    if r.status == DUPLICATE:
        return r.out.last_offset >= g.start  # its original is among them
    if r.status != 0:
        return False
    if g.count == GATHER_MAX or log_active(l).size + g.bytes + r.batch.size > l.settings.segment_bytes:
        return True
    return log_must_roll(l, g.bytes + r.batch.size, r.out.last_offset, r.batch.max_timestamp, now_ms)


cdef void partition_append_ready(partition_t* p, ready_t* first, int64_t now_ms) noexcept nogil:
    """Append checked batches in their order, all that fit one segment in one call; each says how it went."""
    cdef gather_t g
    cdef log_t* l = p.log
    cdef ready_t* r = first
    cdef int64_t end
    g.count = g.vectors = 0
    g.bytes = 0
    pthread_mutex_lock(&l.append_mutex)
    end = g.start = l.view.log_end
    while r != NULL:
        take(p, r, end, now_ms)
        if g.count > 0 and must_write_before(l, &g, r, now_ms):
            write_gathered(p, &g, &end)
            take(p, r, end, now_ms)
        if r.status == 0:
            remember(l, r.batch.producer_id, &g.before[g.count])
            if log_must_roll(l, g.bytes + r.batch.size, r.out.last_offset, r.batch.max_timestamp, now_ms):
                r.status = log_roll(l)
            if r.status == 0:
                r.status = account(l, &r.batch)
            if r.status == 0:
                gather(&g, r)
                end = r.out.last_offset + 1
            else:
                undo(l, &r.batch, &g.before[g.count])
        r = r.next
    write_gathered(p, &g, &end)
    pthread_mutex_unlock(&l.append_mutex)
    if first.status == 0:
        vfs_pass(l.context.fs, P_APPEND_AFTER)
    partition_tell(p)


cdef int partition_check(
    partition_t* p, const uint8_t* data, size_t n, int32_t leader_epoch, int source, ready_t* out) noexcept nogil:
    """Check one batch as far as its bytes and the topic's limits tell; 0, or a Kafka code or -errno. Takes no lock."""
    cdef log_t* l = p.log
    cdef int64_t size_max = peek_i64(&l.settings.max_message_bytes)
    cdef int status = batch_check(data, n, size_max, source == FROM_CLIENT, &out.batch)
    out.next = NULL
    out.leader_epoch = leader_epoch
    out.source = source
    out.status = 0
    out.out.base_offset = -1
    out.out.last_offset = -1
    out.out.log_append_time_ms = -1
    out.out.duplicate = False
    if status == SHORT:
        return CORRUPT_MESSAGE
    if status != 0:
        return status
    if out.batch.size > peek_i64(&l.settings.segment_bytes):
        return RECORD_LIST_TOO_LARGE
    if source == FROM_CLIENT and out.batch.attributes & TRANSACTIONAL:
        return INVALID_TXN_STATE  # no transaction can be open: there is no coordinator yet
    return vfs_pass(l.context.fs, P_APPEND_BEFORE)


cdef int partition_append(
    partition_t* p, const uint8_t* data, size_t n, int32_t leader_epoch, int source, int64_t now_ms, appended_t* out) noexcept nogil:
    """Check, stamp and append exactly one batch. 0, DUPLICATE (out says where the original is), a Kafka code or -errno."""
    cdef ready_t r
    cdef int status = partition_check(p, data, n, leader_epoch, source, &r)
    if status == 0:
        partition_append_ready(p, &r, now_ms)
        status = r.status
    out[0] = r.out
    return status


cdef int append_stamped(log_t* l, const batch_t* b, int64_t now_ms) noexcept nogil:
    """Append a batch as its leader stamped it; its offset must be the next."""
    cdef iovec v
    cdef placed_t placed
    cdef int status
    if load_i32(&l.deleted):
        return UNKNOWN_TOPIC_OR_PARTITION
    if log_offline(l):
        return KAFKA_STORAGE_ERROR
    placed.bytes, placed.last_offset, placed.max_timestamp = b.size, batch_last_offset(b), b.max_timestamp
    if b.base_offset < l.view.log_end or placed.last_offset < b.base_offset:
        return INVALID_RECORD
    if log_must_roll(l, b.size, placed.last_offset, b.max_timestamp, now_ms):
        status = log_roll(l)
        if status < 0:
            return status
    v.iov_base = <void*>b.at
    v.iov_len = b.size
    status = log_write(l, &v, 1, &placed, 1, b.size)
    if status == 0:
        status = account(l, b)
    if status == 0:
        publish_end(l, placed.last_offset + 1, (b.attributes & (TRANSACTIONAL | CONTROL)) != 0)
    return status


cdef int partition_append_replica(partition_t* p, const uint8_t* data, size_t n, int64_t now_ms) noexcept nogil:
    """Append whole batches that a leader stamped; a partial one at the end is left out."""
    cdef batch_t b
    cdef size_t at = 0
    cdef int status = 0
    while status == 0 and at < n:
        status = batch_check(data + at, n - at, 0, False, &b)
        if status == SHORT:
            return 0
        if status == 0:
            pthread_mutex_lock(&p.log.append_mutex)
            status = append_stamped(p.log, &b, now_ms)
            pthread_mutex_unlock(&p.log.append_mutex)
            at += b.size
    partition_tell(p)
    return status


cdef struct visit_t:         # a reader's stay in a log
    int slot
    int64_t generation
    int64_t log_start
    segments_t* list


cdef int enter(log_t* l, visit_t* v) noexcept nogil:
    """Pin a log to look something up in it; 0, or why nothing can be looked up. `leave` ends it either way."""
    v.slot = pin(&l.context.quiesce)
    v.generation = load_i64(&l.generation)
    v.log_start = load_i64(&l.view.log_start)
    v.list = <segments_t*>load_ptr(<void**>&l.segments)
    if load_i32(&l.deleted):
        return UNKNOWN_TOPIC_OR_PARTITION
    return KAFKA_STORAGE_ERROR if v.generation & 1 else 0  # a log that is being truncated is not led


cdef int leave(log_t* l, visit_t* v, int status) noexcept nogil:
    """The status of a look-up, or AGAIN if the log changed under it: what was found may then not be the first."""
    cdef bint moved = <segments_t*>load_ptr(<void**>&l.segments) != v.list or load_i64(&l.view.log_start) != v.log_start
    cdef bint cut = load_i64(&l.generation) != v.generation
    cdef bint deleted = load_i32(&l.deleted) != 0
    unpin(&l.context.quiesce, v.slot)
    if deleted:
        return UNKNOWN_TOPIC_OR_PARTITION  # what was opened by its name may be the file of a successor
    if status == KAFKA_STORAGE_ERROR:
        return status
    return AGAIN if cut or moved else status


cdef int partition_read(
    partition_t* p, int64_t offset, int64_t most, int bound, bint minimum_one, read_t* out) noexcept nogil:
    """Find what a reader at `offset` gets; out.found.files is held for the caller. No lock is taken."""
    cdef log_t* l = p.log
    cdef visit_t visit
    cdef int64_t end
    cdef int status = AGAIN
    while status == AGAIN:
        out.found.files = NULL
        out.found.length = 0
        status = enter(l, &visit)
        out.generation = visit.generation
        log_view(l, &out.view)
        end = out.view.log_end
        if bound == BOUND_HIGH_WATERMARK:
            end = out.view.high_watermark
        elif bound == BOUND_LAST_STABLE:
            end = out.view.last_stable
        if status == 0 and (offset < out.view.log_start or offset > out.view.log_end):
            status = OFFSET_OUT_OF_RANGE
        elif status == 0:
            status = log_read(l, offset, most, end, minimum_one, &out.view, &out.found)
        status = leave(l, &visit, status)
        if status != 0 and out.found.files != NULL:
            files_drop(out.found.files)
            out.found.files = NULL
    return status


cdef int partition_find(partition_t* p, int64_t timestamp, int64_t bound, batch_t* out) noexcept nogil:
    """The first batch below `bound` that reaches `timestamp`; with LARGEST, the first with the largest of all. NOT_FOUND
    if there is none."""
    cdef visit_t visit
    cdef int status = AGAIN
    while status == AGAIN:
        status = enter(p.log, &visit)
        if status == 0 and timestamp == LARGEST:
            status = log_find_largest(p.log, out)
        elif status == 0:
            status = log_find_time(p.log, timestamp, bound, out)
        status = leave(p.log, &visit, status)
    return status


cdef int partition_lead(partition_t* p, int32_t leader_epoch, int32_t partition_epoch) noexcept nogil:
    """Lead from now on under this epoch, which begins at the log's end. An older epoch than ours is refused.

    With one replica all of its log is committed, whatever the last checkpoint of the high watermark said."""
    cdef log_t* l = p.log
    cdef int status = 0
    pthread_mutex_lock(&l.append_mutex)
    if leader_epoch < p.leader_epoch:
        status = FENCED_LEADER_EPOCH
    else:
        store_i32(&p.leader_epoch, leader_epoch)
        store_i32(&p.partition_epoch, partition_epoch)
        status = epochs_assign(&l.epochs, leader_epoch, l.view.log_end)
        publish_end(l, l.view.log_end, True)
    pthread_mutex_unlock(&l.append_mutex)
    return status
