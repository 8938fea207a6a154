"""Appends: the checks of a batch, and its write to a partition's log.

One writer at a time. The CRC is checked before the append mutex is taken; under it come the leader epoch, the
producer's sequence, the roll, one pwritev, the accounting, and the watermarks. A batch is stamped in a copy of its
header, which is written before the untouched rest: the caller's bytes are never changed.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.atomic cimport load_i32, peek_i64, poke_i64, store_i32
from pybroker.core.base.clock cimport monotonic_ms, monotonic_ns
from pybroker.core.base.counters cimport histogram_share, tally
from pybroker.core.base.cursor cimport SHORT
from pybroker.core.base.error_codes cimport (
    CORRUPT_MESSAGE, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER, OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, TRANSACTION_COORDINATOR_FENCED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from pybroker.core.base.files cimport iovec
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.vfs cimport P_APPEND_AFTER, P_APPEND_BEFORE, vfs_pass
from pybroker.core.batch.batch cimport (
    CONTROL, HEADER_BYTES, TRANSACTIONAL, batch_last_offset, batch_parse, batch_payload, batch_payload_size,
    batch_stamp, batch_stamp_time, batch_t,
)
from pybroker.core.batch.marker cimport MARKER_BYTES, NO_MARKER, marker_read, marker_t, marker_write
from pybroker.core.batch.validate cimport batch_validate
from pybroker.core.partition.partition cimport LEADER, partition_t, partition_tell
from pybroker.core.partition.watermark cimport check_epoch, is_under_min_isr, watermark_publish_end
from pybroker.core.storage.log.context cimport lease_is_lost, lease_lapsed
from pybroker.core.storage.log.leader_epochs cimport epochs_assign
from pybroker.core.storage.log.log cimport log_active, log_directory, log_offline, log_t, log_write, placed_t
from pybroker.core.storage.log.log_transactions cimport (
    CHANGES_MAX, change_t, log_note_changes, log_reserve_changes, producers_see,
)
from pybroker.core.storage.log.roll cimport log_must_roll, log_roll
from pybroker.core.storage.log.slow_disk cimport slow_note
from pybroker.core.storage.producers.producer_state cimport (
    DUPLICATE, producer_t, seen_t, sequence_check, sequence_find, sequence_put_back,
)
from pybroker.core.storage.producers.refused_batches cimport (
    REFUSED_MS, refusals_find, refusals_forget, refusals_hold, refusals_note,
)
from pybroker.core.storage.producers.verifications cimport (
    NO_GUARD, VERIFIED, verification_t, verifications_ask, verifications_drop, verifications_find,
)

cdef enum:
    GATHER_MAX = CHANGES_MAX  # batches written by one call; more take several
    OPENED_MS = 1000         # after a change of role, a batch behind a gap is refused as often as it is sent


cdef int check_producer(log_t* l, const batch_t* b, appended_t* out) noexcept nogil:
    """Check the sequence rules; DUPLICATE with the original's offsets filled in."""
    cdef seen_t seen
    cdef int status = sequence_check(
        &l.producers, b.producer_id, b.producer_epoch, b.base_sequence, b.last_offset_delta, &seen)
    if status == DUPLICATE:
        out.base_offset = seen.last_offset - seen.offset_delta
        out.last_offset = seen.last_offset
        out.log_append_time_ms = seen.timestamp if peek_i64(&l.settings.message_timestamp_type) else -1
        out.duplicate = True
    return status


cdef void append_remember(log_t* l, int64_t id, producer_t* before) noexcept nogil:
    """Save a producer's state, in case the write of its next batch fails."""
    cdef const producer_t* p = sequence_find(&l.producers, id) if id >= 0 else NULL
    if p != NULL:
        before[0] = p[0]
    else:
        before.id = -1


cdef void append_undo(log_t* l, const batch_t* b, const producer_t* before) noexcept nogil:
    """Restore the state of a producer whose batch was not written."""
    if b.producer_id >= 0:
        sequence_put_back(&l.producers, b.producer_id, before if before.id >= 0 else NULL)


cdef void note_refused(log_t* l, const checked_t* r, int status) noexcept nogil:
    """Remember a refused batch with the expected sequence, so that the client's batches after it are refused, too."""
    cdef const batch_t* b = &r.batch
    if status < 0:
        store_i32(&l.refusing, -status)
    if b.producer_id >= 0 and r.source == FROM_CLIENT:
        refusals_note(
            &l.refusals, &l.producers, b.producer_id, b.producer_epoch, b.base_sequence, status, monotonic_ms())


cdef int append_account(log_t* l, const batch_t* b, change_t* out) noexcept nogil:
    """Update the producer's window and the leader epochs for a stamped batch; `out`: what it changes once it is
    written."""
    cdef int status = 0
    out.first = -1
    if b.producer_id >= 0:
        if b.attributes & (TRANSACTIONAL | CONTROL):
            status = log_reserve_changes(l, (b.attributes & CONTROL) != 0)
        if status == 0:
            status = producers_see(&l.producers, b, batch_payload(b), <size_t>batch_payload_size(b), out)
        if status == 0:
            verifications_drop(&l.verifications, b.producer_id)
    return status if status != 0 else epochs_assign(&l.epochs, b.leader_epoch, b.base_offset)


cdef struct gather_t:        # stamped batches that are written by one call
    iovec v[2 * <int>GATHER_MAX]
    placed_t placed[<int>GATHER_MAX]
    checked_t* checked[<int>GATHER_MAX]
    producer_t before[<int>GATHER_MAX]   # the state of each batch's producer before it; id -1: unknown
    change_t changes[<int>GATHER_MAX]
    bint transactions        # one of the batches changes a transaction
    int vectors
    int count
    int64_t bytes
    int64_t start            # offset of the first


cdef void write_gathered(partition_t* p, gather_t* g, int64_t* end) noexcept nogil:
    """Write the gathered batches and publish the log's end; on failure, fail all and restore their producers' state."""
    cdef log_t* l = p.log
    cdef int i, status
    if g.count == 0:
        return
    status = log_write(l, g.v, g.vectors, g.placed, g.count, g.bytes)
    for i in range(g.count):
        g.checked[i].status = status
    if status == 0:
        if g.transactions:
            log_note_changes(l, log_active(l), g.changes, g.count)
        watermark_publish_end(p, end[0])
        tally(&l.traffic.batches_in, g.count)
        tally(&l.traffic.records_in, end[0] - g.start)
        tally(&l.traffic.bytes_in, g.bytes)
        if load_i32(&l.refusing):
            store_i32(&l.refusing, 0)
        if l.refusals.count > 0:
            for i in range(g.count):
                if g.checked[i].source == FROM_CLIENT:
                    refusals_forget(&l.refusals, g.checked[i].batch.producer_id)
    else:
        end[0] = g.start
        for i in range(g.count - 1, -1, -1):
            append_undo(l, &g.checked[i].batch, &g.before[i])
        for i in range(g.count):  # after all undos: each producer has to send its first refused batch again
            note_refused(l, g.checked[i], status)
    g.count = g.vectors = 0
    g.transactions = False
    g.bytes = 0
    g.start = end[0]


cdef void gather(gather_t* g, checked_t* r) noexcept nogil:
    cdef iovec* v = &g.v[g.vectors]
    v[0].iov_base, v[0].iov_len = r.header, HEADER_BYTES
    v[1].iov_base, v[1].iov_len = <void*>(r.batch.at + HEADER_BYTES), r.batch.size - HEADER_BYTES
    g.vectors += 2 if v[1].iov_len else 1
    g.placed[g.count].bytes = r.batch.size
    g.placed[g.count].last_offset = r.out.last_offset
    g.placed[g.count].max_timestamp = r.batch.max_timestamp
    g.checked[g.count] = r
    g.transactions |= g.changes[g.count].first >= 0
    g.count += 1
    g.bytes += r.batch.size


cdef void stamp(partition_t* p, checked_t* r, int64_t offset, int64_t now_ms) noexcept nogil:
    """Stamp a batch with its offset, leader epoch and, with LogAppendTime, the time."""
    cdef int32_t leader_epoch = <int32_t>p.role.leader_epoch
    if peek_i64(&p.log.settings.message_timestamp_type):
        batch_stamp_time(&r.batch, offset, leader_epoch, now_ms, r.header)
        r.out.log_append_time_ms = now_ms
        r.batch.max_timestamp = now_ms
    else:
        batch_stamp(&r.batch, offset, leader_epoch, r.header)
    r.batch.base_offset = offset
    r.batch.leader_epoch = leader_epoch
    r.out.base_offset = offset
    r.out.last_offset = batch_last_offset(&r.batch)


cdef int forerunner_status(partition_t* p, const batch_t* b, int status) noexcept nogil:
    """The status that this batch's predecessor was refused with; 0 if it was not. `status` is the result of the
    sequence rules for this batch.

    This broker does not know the batches that it refused before it led, or that the leader before it refused: it takes
    the first gap of a producer that has written nothing in this leader epoch as a sign of one. A lone broker leads
    before it accepts connections."""
    cdef log_t* l = p.log
    cdef const producer_t* known
    cdef int64_t now_ms = monotonic_ms(), led_ms = now_ms - p.opened_ms
    cdef int refused = 0
    if l.refusals.count > 0:
        refused = refusals_find(&l.refusals, &l.producers, b.producer_id, b.producer_epoch, b.base_sequence, now_ms)
    if refused != 0 or b.base_sequence <= 0 or led_ms >= REFUSED_MS:
        return refused
    if p.alone and peek_i64(&l.context.lease_ms) == 0:
        return 0
    known = sequence_find(&l.producers, b.producer_id)
    if known != NULL and status == 0:
        return 0
    if led_ms < OPENED_MS:
        return NOT_ENOUGH_REPLICAS
    if known != NULL and known.count > 0 and known.window[known.newest].last_offset >= peek_i64(&p.epoch_start):
        return 0
    if refusals_hold(
            &l.refusals, b.producer_id, b.producer_epoch, b.base_sequence, <int32_t>p.role.leader_epoch, now_ms):
        return NOT_ENOUGH_REPLICAS
    return 0


cdef int check_acks(partition_t* p, const checked_t* r) noexcept nogil:
    """Check a request's acks against what the replica may promise: 0 or a Kafka code."""
    if r.acks != ACKS_UNSAID and lease_is_lost(p.log.context):
        return NOT_LEADER_OR_FOLLOWER
    if r.acks == ACKS_ALL:
        return NOT_ENOUGH_REPLICAS if is_under_min_isr(p) else 0
    if r.acks != ACKS_UNSAID and lease_lapsed(p.log.context):
        return NOT_LEADER_OR_FOLLOWER
    return 0


cdef int check_transaction(log_t* l, const checked_t* r) noexcept nogil:
    """Check a transactional batch: a transaction of its producer and epoch is open here, or the coordinator was asked,
    and nothing of the producer was appended since. 0 or a Kafka code.

    An open transaction of an earlier epoch cannot be: the coordinator ends it before it gives the next epoch out. If it
    is found, the batch would become a part of it; a refused client aborts, and the marker ends both."""
    cdef const producer_t* known = sequence_find(&l.producers, r.batch.producer_id)
    cdef const verification_t* asked
    if known != NULL and known.txn_first_offset >= 0:
        return INVALID_TXN_STATE if r.batch.producer_epoch > known.epoch else 0
    if r.guard == VERIFIED:
        return 0
    asked = verifications_find(&l.verifications, r.batch.producer_id)
    if asked == NULL or asked.guard != r.guard:
        return INVALID_TXN_STATE
    if r.source == FROM_CLIENT and r.batch.producer_epoch == asked.epoch and r.batch.base_sequence > asked.lowest:
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    return 0


cdef int check_plain(log_t* l, const batch_t* b) noexcept nogil:
    """Refuse a plain batch of a producer with an open transaction: 0 or a Kafka code."""
    cdef const producer_t* known = sequence_find(&l.producers, b.producer_id)
    return INVALID_TXN_STATE if known != NULL and known.txn_first_offset >= 0 else 0


cdef int admit_from_client(partition_t* p, checked_t* r) noexcept nogil:
    """Check a client's batch against the rules of acks, sequences and transactions: 0, DUPLICATE, a Kafka code or
    -errno."""
    cdef int unacked = check_acks(p, r), refused, status, outside = 0
    if r.batch.producer_id < 0:
        return unacked
    status = check_producer(p.log, &r.batch, &r.out)
    if status != DUPLICATE and r.batch.attributes & TRANSACTIONAL:
        outside = check_transaction(p.log, r)
    elif status == 0:
        outside = check_plain(p.log, &r.batch)
    if outside or (status != 0 and status != OUT_OF_ORDER_SEQUENCE_NUMBER):
        return unacked if unacked else outside if outside else status
    refused = forerunner_status(p, &r.batch, status)
    if unacked and status == 0 and not refused:
        note_refused(p.log, r, unacked)
    if unacked or refused:
        return unacked if unacked else refused
    return status


cdef int admit_from_broker(partition_t* p, checked_t* r) noexcept nogil:
    """Check a batch of the broker itself that has a producer: a marker, or offsets in a transaction. 0 or a Kafka
    code."""
    cdef const producer_t* known = sequence_find(&p.log.producers, r.batch.producer_id)
    cdef marker_t marker
    if known != NULL and r.batch.producer_epoch < known.epoch:
        return INVALID_PRODUCER_EPOCH
    if r.batch.attributes & CONTROL:
        marker_read(&r.batch, batch_payload(&r.batch), <size_t>batch_payload_size(&r.batch), &marker)
        if known != NULL and marker.type != NO_MARKER and marker.coordinator_epoch < known.coordinator_epoch:
            return TRANSACTION_COORDINATOR_FENCED
        return 0
    return check_transaction(p.log, r) if r.batch.attributes & TRANSACTIONAL else check_plain(p.log, &r.batch)


cdef int admit(partition_t* p, checked_t* r) noexcept nogil:
    """Do the checks that need the append mutex: the log is usable, we lead it in this epoch, the sequence follows."""
    cdef log_t* l = p.log
    cdef int status
    r.out.log_start = l.view.log_start
    if load_i32(&l.deleted):
        return UNKNOWN_TOPIC_OR_PARTITION
    if log_offline(l):
        return KAFKA_STORAGE_ERROR
    if p.role.kind != LEADER:
        return NOT_LEADER_OR_FOLLOWER
    status = check_epoch(p, r.leader_epoch)
    if status == 0 and r.source == FROM_CLIENT:
        return admit_from_client(p, r)
    if status == 0:
        status = check_acks(p, r)
    if status == 0 and r.batch.producer_id >= 0:
        status = admit_from_broker(p, r)
    return status


cdef void take(partition_t* p, checked_t* r, int64_t end, int64_t now_ms) noexcept nogil:
    """Check whether a batch may be appended at `end`, and stamp it with that offset."""
    r.out.duplicate = False
    r.status = admit(p, r)
    if r.status == 0:
        stamp(p, r, end, now_ms)


cdef bint must_write_before(log_t* l, const gather_t* g, const checked_t* r, int64_t now_ms) noexcept nogil:
    """True if the gathered batches must be written before this one can be handled."""
    if r.status == DUPLICATE:
        return r.out.last_offset >= g.start  # its original is among them
    if r.status != 0:
        return False
    if g.count == GATHER_MAX or log_active(l).size + g.bytes + r.batch.size > peek_i64(&l.settings.segment_bytes):
        return True
    return log_must_roll(l, g.bytes + r.batch.size, r.out.last_offset, r.batch.max_timestamp, now_ms)


cdef void partition_append_checked(partition_t* p, checked_t* first, int64_t now_ms) noexcept nogil:
    """Append checked batches in order, with one call for all that fit into one segment. Each gets its own status."""
    cdef gather_t g
    cdef log_t* l = p.log
    cdef checked_t* r = first
    cdef int64_t end, began_ns
    g.count = g.vectors = 0
    g.transactions = False
    g.bytes = 0
    pthread_mutex_lock(&l.append_mutex)
    began_ns = monotonic_ns()
    poke_i64(&l.slow_appends.since_ms, began_ns // 1000000)
    end = g.start = l.view.log_end
    while r != NULL:
        take(p, r, end, now_ms)
        if g.count > 0 and must_write_before(l, &g, r, now_ms):
            write_gathered(p, &g, &end)
            take(p, r, end, now_ms)
        if r.status == 0:
            append_remember(l, r.batch.producer_id, &g.before[g.count])
            if log_must_roll(l, g.bytes + r.batch.size, r.out.last_offset, r.batch.max_timestamp, now_ms):
                r.status = log_roll(l)
            if r.status == 0:
                r.status = append_account(l, &r.batch, &g.changes[g.count])
            if r.status == 0:
                gather(&g, r)
                end = r.out.last_offset + 1
            else:
                append_undo(l, &r.batch, &g.before[g.count])
                note_refused(l, r, r.status)
        r = r.next
    write_gathered(p, &g, &end)
    poke_i64(&l.slow_appends.since_ms, 0)
    pthread_mutex_unlock(&l.append_mutex)
    if first.status == 0:
        vfs_pass(l.context.fs, P_APPEND_AFTER, log_directory(l))
    histogram_share(&l.context.fs.appends, slow_note(&l.slow_appends, began_ns))
    partition_tell(p)


cdef int pass_before(log_t* l) noexcept nogil:
    cdef int64_t began_ns
    cdef int status
    if load_i32(&l.context.fs.armed) == 0:
        return 0
    began_ns = monotonic_ns()
    status = vfs_pass(l.context.fs, P_APPEND_BEFORE, log_directory(l))
    slow_note(&l.slow_appends, began_ns)
    return status


cdef void begin(checked_t* r, int32_t leader_epoch, int source, int32_t acks) noexcept nogil:
    r.next = NULL
    r.leader_epoch = leader_epoch
    r.source = source
    r.acks = acks
    r.status = 0
    r.guard = NO_GUARD
    r.out.base_offset = -1
    r.out.last_offset = -1
    r.out.log_append_time_ms = -1
    r.out.duplicate = False


cdef int partition_check(
    partition_t* p, const uint8_t* data, size_t n, int32_t leader_epoch, int source, int32_t acks,
    checked_t* out) noexcept nogil:
    """Check one batch by its bytes and the topic's limits, without a lock: 0, a Kafka code or -errno."""
    cdef log_t* l = p.log
    cdef int64_t size_max = peek_i64(&l.settings.max_message_bytes)
    cdef int status = batch_validate(data, n, size_max, source == FROM_CLIENT, &out.batch)
    begin(out, leader_epoch, source, acks)
    if status == SHORT:
        return CORRUPT_MESSAGE
    if status != 0:
        return status
    if out.batch.size > peek_i64(&l.settings.segment_bytes):
        return RECORD_LIST_TOO_LARGE
    return pass_before(l)


cdef int partition_append(
    partition_t* p, const uint8_t* data, size_t n, int32_t leader_epoch, int source, int32_t acks, int64_t guard,
    int64_t now_ms, appended_t* out) noexcept nogil:
    """Check, stamp and append exactly one batch. 0, DUPLICATE (with the original's offsets), a Kafka code or
    -errno."""
    cdef checked_t r
    cdef int status = partition_check(p, data, n, leader_epoch, source, acks, &r)
    if status == 0:
        r.guard = guard
        partition_append_checked(p, &r, now_ms)
        status = r.status
    out[0] = r.out
    return status


# -- transactions ------------------------------------------------------------------------------------------------------

cdef int partition_append_marker(
    partition_t* p, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
    int64_t now_ms, appended_t* out) noexcept nogil:
    """Append the marker that ends a producer's transaction, whether one is open here or not, by the rules of acks=all.
    No limit of sizes applies to it. 0, a Kafka code or -errno."""
    cdef uint8_t data[MARKER_BYTES]
    cdef checked_t r
    cdef int status = pass_before(p.log)
    begin(&r, -1, INTERNAL, ACKS_ALL)
    if status == 0:
        marker_write(data, producer_id, producer_epoch, coordinator_epoch, commit, now_ms)
        batch_parse(data, sizeof(data), &r.batch)
        partition_append_checked(p, &r, now_ms)
        status = r.status
    out[0] = r.out
    return status


cdef bint partition_in_transaction(partition_t* p, const batch_t* b) noexcept nogil:
    """True if a transaction of the batch's producer and epoch is open here."""
    cdef const producer_t* known
    cdef bint is_open
    pthread_mutex_lock(&p.log.append_mutex)
    known = sequence_find(&p.log.producers, b.producer_id)
    is_open = known != NULL and known.txn_first_offset >= 0 and known.epoch == b.producer_epoch
    pthread_mutex_unlock(&p.log.append_mutex)
    return is_open


cdef int64_t partition_verify(partition_t* p, int64_t producer_id, int16_t epoch, int32_t first) noexcept nogil:
    """NO_GUARD if a transaction of the producer is open here in this epoch; else a guard for the append of a batch
    about which its coordinator is asked. -ENOMEM without memory."""
    cdef log_t* l = p.log
    cdef const producer_t* known
    cdef int64_t guard = NO_GUARD
    pthread_mutex_lock(&l.append_mutex)
    known = sequence_find(&l.producers, producer_id)
    if known == NULL or known.txn_first_offset < 0 or known.epoch != epoch:
        guard = verifications_ask(&l.verifications, producer_id, epoch, first)
    pthread_mutex_unlock(&l.append_mutex)
    return guard
