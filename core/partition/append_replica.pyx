"""Appends of a follower: batches as their leader stamped them, first checked and then written together.

All batches of one answer for a partition are checked before any is appended: length, magic, CRC, counts, ascending
offsets (with gaps, which compaction leaves), and ascending epochs up to the leader's. Batches for one segment are
written by one pwritev, straight from the received bytes.

Under the append mutex, the role and its epoch are checked, and that the log still ends at the fetch offset: records
fetched before a truncation are not appended after it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i32, peek_i64, poke_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.counters cimport histogram_share, tally
from pybroker.core.base.cursor cimport OK, SHORT
from pybroker.core.base.error_codes cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION,
)
from pybroker.core.base.files cimport iovec
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.batch.batch cimport batch_check, batch_last_offset, batch_parse, batch_t
from pybroker.core.partition.append cimport append_account, append_remember, append_undo
from pybroker.core.partition.partition cimport FOLLOWER, partition_t, partition_tell
from pybroker.core.partition.watermark cimport check_epoch, watermark_learn, watermark_publish_end
from pybroker.core.storage.log.leader_epochs cimport epochs_at, epochs_cut_tail
from pybroker.core.storage.log.log cimport (
    log_active, log_change, log_offline, log_publish, log_t, log_write, placed_t, view_t,
)
from pybroker.core.storage.log.log_transactions cimport (
    CHANGES_MAX, change_t, log_begin_restore, log_end_restore, log_note_changes,
)
from pybroker.core.storage.log.roll cimport SEGMENT_SPAN_MAX, log_must_roll, log_roll
from pybroker.core.storage.log.slow_disk cimport slow_note
from pybroker.core.storage.producers.producer_state cimport producer_t, sequence_close_all

cdef enum:
    RUN_MAX = CHANGES_MAX    # batches written by one call; more take several

cdef struct run_t:           # adjacent batches for one segment that are written by one call
    const uint8_t* at
    int64_t bytes
    int64_t end              # the offset that follows them
    bint transactions        # one of them changes a transaction
    int32_t count
    batch_t batches[<int>RUN_MAX]
    placed_t placed[<int>RUN_MAX]
    producer_t before[<int>RUN_MAX]  # the state of each batch's producer before it
    change_t changes[<int>RUN_MAX]


cdef inline bint continues(const batch_t* b, int64_t end) noexcept nogil:
    """True if a batch may follow at the log's end `end`. A roll names the new segment by the log's end, and a segment
    cannot hold offsets more than SEGMENT_SPAN_MAX above its base. (An empty log begins at another offset.)"""
    return end <= b.base_offset and batch_last_offset(b) - end <= SEGMENT_SPAN_MAX


cdef int check_all(const replicated_t* sent, size_t* whole) noexcept nogil:
    """Check every batch; `whole` is the size of the complete ones in bytes."""
    cdef batch_t b
    cdef int64_t end = -1
    cdef int32_t epoch = -1
    cdef int status
    whole[0] = 0
    while whole[0] < sent.n:
        status = batch_check(sent.data + whole[0], sent.n - whole[0], 0, False, &b)
        if status == SHORT:
            return 0
        if status != OK:
            return status
        if end >= 0 and not continues(&b, end):
            return INVALID_RECORD
        if b.leader_epoch < epoch or b.leader_epoch > sent.leader_epoch >= 0:
            return CORRUPT_MESSAGE
        epoch = b.leader_epoch
        end = batch_last_offset(&b) + 1
        whole[0] += b.size
    return 0


cdef int admit(partition_t* p, const replicated_t* sent) noexcept nogil:
    """Check whether the batches may be appended. Under the append mutex."""
    cdef log_t* l = p.log
    if sent.gone != NULL and load_i32(sent.gone):
        return NOT_ASKED
    if load_i32(&l.deleted):
        return UNKNOWN_TOPIC_OR_PARTITION
    if log_offline(l):
        return KAFKA_STORAGE_ERROR
    if p.role.kind != FOLLOWER:
        return NOT_LEADER_OR_FOLLOWER
    if 0 <= sent.offset != l.view.log_end:
        return NOT_ASKED
    return check_epoch(p, sent.leader_epoch)


cdef int write_run(partition_t* p, run_t* g) noexcept nogil:
    """Write the gathered batches and publish the log's end; on failure restore their producers' state."""
    cdef iovec v
    cdef int i, status
    if g.count == 0:
        return 0
    v.iov_base = <void*>g.at
    v.iov_len = g.bytes
    status = log_write(p.log, &v, 1, g.placed, g.count, g.bytes)
    if status == 0:
        tally(&p.log.traffic.replication_bytes_in, g.bytes)
        if g.transactions:
            log_note_changes(p.log, log_active(p.log), g.changes, g.count)
        watermark_publish_end(p, g.end)
    else:
        for i in range(g.count - 1, -1, -1):
            append_undo(p.log, &g.batches[i], &g.before[i])
    g.count = 0
    g.transactions = False
    g.bytes = 0
    return status


cdef bint needs_segment(log_t* l, const run_t* g, const batch_t* b, int64_t now_ms) noexcept nogil:
    """True if a batch after the gathered ones belongs in the next segment."""
    if g.count > 0 and log_active(l).size + g.bytes + b.size > peek_i64(&l.settings.segment_bytes):
        return True
    return log_must_roll(l, g.bytes + b.size, batch_last_offset(b), b.max_timestamp, now_ms)


cdef int gather(partition_t* p, run_t* g, const batch_t* b) noexcept nogil:
    """Add a batch to the run, and account for it."""
    cdef int i = g.count, status
    g.batches[i] = b[0]
    append_remember(p.log, b.producer_id, &g.before[i])
    status = append_account(p.log, b, &g.changes[i])  # before the write, as a written batch can no longer be refused
    if status != 0:
        append_undo(p.log, b, &g.before[i])
        return status
    if i == 0:
        g.at = b.at
    g.placed[i].bytes = b.size
    g.placed[i].last_offset = batch_last_offset(b)
    g.placed[i].max_timestamp = b.max_timestamp
    g.transactions |= g.changes[i].first >= 0
    g.end = batch_last_offset(b) + 1
    g.bytes += b.size
    g.count += 1
    return 0


cdef inline bint is_empty_before(const log_t* l, int64_t offset) noexcept nogil:
    return l.view.log_start == l.view.log_end and l.view.log_end < offset


cdef void pass_over(log_t* l) noexcept nogil:
    """Forget the open transactions of an empty log before a gap: their records are gone, and their markers may lie in
    it."""
    log_begin_restore(l, l.view.log_end)
    sequence_close_all(&l.producers)
    log_end_restore(l)


cdef int begin_at(log_t* l, int64_t offset) noexcept nogil:
    """Begin an empty log at another offset, with a new segment: the leader has no records before it. Under the append
    mutex."""
    cdef view_t v
    log_change(l, &v)
    v.log_start = v.high_watermark = v.log_end = offset
    log_publish(l, &v)
    return log_roll(l)


cdef int append_all(partition_t* p, const uint8_t* data, size_t n, int64_t now_ms) noexcept nogil:
    """Append checked batches. Under the append mutex."""
    cdef log_t* l = p.log
    cdef run_t g
    cdef batch_t b
    cdef size_t at = 0
    cdef int written, status = batch_parse(data, n, &b)
    if status == 0 and is_empty_before(l, b.base_offset):
        pass_over(l)
    if status == 0 and not continues(&b, l.view.log_end):
        status = begin_at(l, b.base_offset) if is_empty_before(l, b.base_offset) else INVALID_RECORD
    if status != 0:
        return status
    epochs_cut_tail(&l.epochs, l.view.log_end)  # remove an epoch in which we led but wrote no record
    if b.leader_epoch < epochs_at(&l.epochs, l.view.log_end):
        return CORRUPT_MESSAGE   # recovery would take the batch for damage
    g.at = data
    g.count = 0
    g.transactions = False
    g.bytes = g.end = 0
    while status == 0 and at < n:
        status = batch_parse(data + at, n - at, &b)
        if status == 0 and (g.count == RUN_MAX or (g.count > 0 and needs_segment(l, &g, &b, now_ms))):
            status = write_run(p, &g)
        if status == 0 and g.count == 0 and needs_segment(l, &g, &b, now_ms):
            status = log_roll(l)
        if status == 0:
            status = gather(p, &g, &b)
        at += b.size
    written = write_run(p, &g)   # batches gathered before a failure are sound
    return status if status != 0 else written


cdef int append_whole(partition_t* p, const replicated_t* sent, size_t whole, int64_t now_ms) noexcept nogil:
    """Append the complete batches, and raise the high watermark; neither once `gone` is set."""
    cdef log_t* l = p.log
    cdef int64_t began_ns
    cdef int status
    pthread_mutex_lock(&l.append_mutex)
    status = admit(p, sent)
    if status == 0:
        began_ns = monotonic_ns()
        poke_i64(&l.slow_appends.since_ms, began_ns // 1000000)
        status = append_all(p, sent.data, whole, now_ms)
        poke_i64(&l.slow_appends.since_ms, 0)
        histogram_share(&l.context.fs.appends, slow_note(&l.slow_appends, began_ns))
    if status == 0:
        status = watermark_learn(p, sent.leader_epoch, sent.high_watermark)
    pthread_mutex_unlock(&l.append_mutex)
    return status


cdef int partition_append_replica(partition_t* p, const replicated_t* sent, int64_t now_ms) noexcept nogil:
    """Append complete batches as the leader stamped them; if one is bad, none. They are committed up to the leader's
    high watermark. 0, NOT_ASKED, a Kafka code or -errno."""
    cdef size_t whole
    cdef int status = check_all(sent, &whole)
    if status == 0 and whole > 0:
        status = append_whole(p, sent, whole, now_ms)
    elif status == 0 and sent.gone != NULL and load_i32(sent.gone):
        status = NOT_ASKED
    elif status == 0:
        status = watermark_learn(p, sent.leader_epoch, sent.high_watermark)
    partition_tell(p)
    return status
