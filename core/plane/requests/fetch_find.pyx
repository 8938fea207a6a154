"""Finding the records of each partition of a Fetch, within its limits; what a Fetch waits for before, and for how
long."""

from libc.errno cimport EMFILE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp

from pybroker.core.base.atomic cimport load_i32, load_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.error_codes cimport (
    FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH,
)
from pybroker.core.partition.committed_read cimport UNREAD_INDEX, partition_read_committed
from pybroker.core.partition.partition cimport FOLLOWER, LEADER, partition_read, partition_role, role_t
from pybroker.core.partition.watermark cimport watermark_is_in_sync, watermark_note_fetch
from pybroker.core.plane.connection.conn cimport conn_t
from pybroker.core.plane.connection.operation cimport operation_new, operation_t
from pybroker.core.plane.limits.quota_bucket cimport bucket_most, bucket_record, bucket_wait
from pybroker.core.plane.limits.quotas cimport quotas_fetched
from pybroker.core.plane.requests.fetch_wire cimport ABORTS_MAX, fetch_bound, fetch_t, wanted_t
from pybroker.core.storage.background.cold_reads cimport (
    cold_new, cold_put, cold_t, cold_wish, reader_is_cold, reader_is_open,
)
from pybroker.core.storage.log.context cimport lease_lapsed
from pybroker.core.storage.log.leader_epochs cimport epochs_end
from pybroker.core.storage.log.log cimport log_t, log_view, view_t
from pybroker.core.storage.log.slow_disk cimport slow_is, slow_note
from pybroker.core.storage.segment.open_files cimport files_drop

cdef enum:
    READ_MS_MAX = 30000          # for a reader; then the reactor itself waits for the disk
    OPENS_MAX = 4                # per request on the reactor: a reader has opened what it read
    LATER = -2                   # for a partition: not in this response
    ANSWER_BYTES = 40            # beside its partitions, which are mostly of one topic
    PARTITION_BYTES = 40         # beside its records

cpdef enum:
    WITHHELD_MS_MIN = 3  # the shortest wait after records were withheld by a throttle; Python's handlers use it, too


# -- finding -----------------------------------------------------------------------------------------------------------

cdef void fetch_let_go(fetch_t* q) noexcept nogil:
    cdef int32_t i
    for i in range(q.count):
        if q.wanted[i].read.found.files != NULL:
            files_drop(q.wanted[i].read.found.files)
            q.wanted[i].read.found.files = NULL


cdef bint follows(wanted_t* w, int32_t leader_epoch) noexcept nogil:
    """True if the client's last record lies in our log, too (KIP-320). Its offset is known to be in the log's range. If
    not, `w` gets our largest epoch up to the client's, and its end."""
    cdef log_t* l = w.partition.log
    cdef view_t v
    if w.last_epoch == leader_epoch:
        return True
    log_view(l, &v)
    w.diverging_epoch = epochs_end(&l.epochs, w.last_epoch, v.log_end, &w.diverging_end)
    return w.diverging_epoch == w.last_epoch and w.offset <= w.diverging_end


cdef bint fetch_is_near(const fetcher_t* f) noexcept nogil:
    """True if the request is a consumer's in our rack (KIP-392), which may read committed records from a follower,
    too."""
    cdef const fetch_t* q = &f.request
    if f.rack_length <= 0 or q.replica >= 0 or q.rack.length != f.rack_length:
        return False
    return memcmp(q.rack.at, f.rack, f.rack_length) == 0


cdef bint may_open(fetch_t* q) noexcept nogil:
    """Count a file that is opened here for a response. Without records so far, any number may be opened."""
    q.opens += 1
    return q.opens <= OPENS_MAX or q.found_bytes == 0


cdef void tell_ends(wanted_t* w) noexcept nogil:
    """Return only a partition's watermarks, no records."""
    log_view(w.partition.log, &w.read.view)
    w.read.generation = load_i64(&w.partition.log.generation)


cdef int find_follower(fetcher_t* f, wanted_t* w, int32_t leader_epoch) noexcept nogil:
    """Check that a follower's log matches ours up to its end, and then record its fetch position; 0, or the error for
    it. If the logs diverge nothing is recorded: the follower has other records at these offsets."""
    cdef fetch_t* q = &f.request
    cdef view_t v
    log_view(w.partition.log, &v)
    if w.offset < v.log_start:
        return OFFSET_OUT_OF_RANGE
    if w.last_epoch >= 0 and not (w.offset <= v.log_end and follows(w, leader_epoch)):
        w.diverging_epoch = epochs_end(&w.partition.log.epochs, w.last_epoch, v.log_end, &w.diverging_end)
        if w.diverging_epoch < 0:
            return OFFSET_OUT_OF_RANGE
        w.diverges = w.diverging_epoch < w.last_epoch or w.diverging_end < w.offset
    if w.diverges or not f.noting:
        return 0
    return watermark_note_fetch(
        w.partition, q.replica, q.replica_epoch, w.leader_epoch, w.offset, w.log_start,
        q.session_id if q.session_epoch > 0 else 0, q.session_epoch, f.now_ms)


cdef int read_committed(fetch_t* q, wanted_t* w, int64_t most, bint minimum_one) noexcept nogil:
    """Find the committed records of a partition; UNREAD_INDEX if Python must handle it."""
    cdef int status
    w.aborts_from = q.aborts.count
    status = partition_read_committed(w.partition, w.offset, most, minimum_one, False, &w.read, &q.aborts)
    w.aborts_count = q.aborts.count - w.aborts_from
    if status == 0 and q.aborts.count > ABORTS_MAX:
        return UNREAD_INDEX      # fetch_let_go releases the records
    return status


cdef int read_one(fetch_t* q, wanted_t* w, int64_t most, bint minimum_one) noexcept nogil:
    """Find the records of a partition, at least one batch if required or if nothing was found yet; a status."""
    if not reader_is_open(w.partition.log, w.offset) and not may_open(q):
        return -EMFILE
    minimum_one |= q.found_bytes == 0
    if q.replica >= 0 or not q.isolation:
        return partition_read(w.partition, w.offset, most, fetch_bound(q), minimum_one, &w.read)
    return read_committed(q, w, most, minimum_one)


cdef bint is_throttled(fetcher_t* f, const wanted_t* w) noexcept nogil:
    """True if the throttle applies to a follower's fetch of this partition. A follower in the ISR is not throttled."""
    if f.throttle == NULL or f.request.replica < 0 or not load_i32(&w.partition.leader_throttled):
        return False
    return not watermark_is_in_sync(w.partition, f.request.replica)


cdef void allow_throttled(fetcher_t* f) noexcept nogil:
    """Set how much of throttled partitions a response may have now."""
    cdef fetch_t* q = &f.request
    q.throttled_left = q.withheld_ms = 0
    if f.throttle == NULL or q.replica < 0:
        return
    q.withheld_ms = bucket_wait(f.throttle, f.now_ms)
    if q.withheld_ms == 0:       # one batch is always allowed, however small the rate is
        q.throttled_left = max(<int64_t>1, bucket_most(f.throttle, f.now_ms))


cdef void count_replicated(fetcher_t* f) noexcept nogil:
    """Record what a follower outside the ISR gets of throttled partitions. Kafka records what one in the ISR gets as
    well (KIP-73); if that is above the rate, followers outside the ISR get nothing."""
    cdef fetch_t* q = &f.request
    cdef int64_t n = 0
    cdef int32_t i
    for i in range(q.count):
        if is_throttled(f, &q.wanted[i]):
            n += q.wanted[i].read.found.length
    if n > 0:
        bucket_record(f.throttle, n, f.now_ms)


cdef int find_one(fetcher_t* f, wanted_t* w, int64_t most) noexcept nogil:
    """Find the records of a partition; 0, the error for its client, -1: Python must handle it, or LATER: its file is
    closed, and there is no descriptor for it now."""
    cdef fetch_t* q = &f.request
    cdef role_t role
    cdef int32_t epoch
    cdef int status = 0
    cdef bint throttled
    cdef bint lapsed = lease_lapsed(w.partition.log.context)
    w.read.found.files = NULL
    w.read.found.length = 0
    w.aborts_from = w.aborts_count = 0
    w.diverges = 0
    partition_role(w.partition, &role)
    epoch = <int32_t>role.leader_epoch
    if not load_i32(&w.partition.published):
        return -1
    if w.leader_epoch != -1 and w.leader_epoch < epoch:
        if q.replica < 0:
            return -1
        status = FENCED_LEADER_EPOCH
    elif role.kind != LEADER and w.leader_epoch <= epoch and not (role.kind == FOLLOWER and fetch_is_near(f)):
        w.read.view.high_watermark = w.read.view.last_stable = w.read.view.log_start = -1
        w.leader, w.led_epoch = <int32_t>role.leader, epoch
        return NOT_LEADER_OR_FOLLOWER
    if load_i32(&w.partition.log.unread):
        return -1                # its disk failed a read: Python reads before it answers
    if w.leader_epoch > epoch:
        status = UNKNOWN_LEADER_EPOCH
    elif q.replica >= 0 and status == 0:
        status = find_follower(f, w, epoch)
    if status == 0 and w.diverges:
        tell_ends(w)
        return 0
    if status == 0:
        throttled = is_throttled(f, w)
        if throttled and q.throttled_left <= 0:
            tell_ends(w)
            return 0
        status = read_one(q, w, min(most, q.throttled_left) if throttled else most, throttled and most > 0)
        q.throttled_left -= w.read.found.length if throttled else 0
    if status == UNREAD_INDEX:
        return -1
    if status == -EMFILE and q.found_bytes > 0:
        tell_ends(w)
        return LATER
    if q.replica < 0 and w.last_epoch >= 0 and (status != 0 or not follows(w, epoch)):
        return -1
    if status == OFFSET_OUT_OF_RANGE and q.replica < 0 and (lapsed or lease_lapsed(w.partition.log.context)):
        return -1                # another broker may lead by now, and have later records
    if status != 0:
        w.read.view.high_watermark = w.read.view.last_stable = w.read.view.log_start = -1
    if status == 0 or status == OFFSET_OUT_OF_RANGE or status == UNKNOWN_LEADER_EPOCH:
        return status
    if q.replica >= 0 and status > 0:
        return status
    return KAFKA_STORAGE_ERROR if status < 0 or status == KAFKA_STORAGE_ERROR else -1


cdef bint fetch_find(fetcher_t* f, bint* settled) noexcept nogil:
    """Find the records of each partition, in order, within the limits; False if Python must handle one of them.

    The first partition with records returns a complete batch at least, even beyond the limits (KIP-74). settled: no
    wait."""
    cdef fetch_t* q = &f.request
    cdef int64_t left = q.max_bytes if q.max_bytes < f.bytes_max else f.bytes_max
    cdef int64_t began_ns = monotonic_ns()
    cdef wanted_t* w
    cdef int32_t i
    q.found_bytes = 0
    q.opens = 0
    q.aborts.count = 0
    allow_throttled(f)
    settled[0] = q.max_wait_ms <= 0
    for i in range(q.count):
        w = &q.wanted[i]
        w.error = find_one(f, w, w.most if w.most < left else left)
        if w.error == LATER:
            w.error = 0
            settled[0] = True
        if w.error < 0:
            q.count = i + 1
            fetch_let_go(q)
            return False
        settled[0] |= w.error != 0 or w.diverges != 0
        f.errors += w.error != 0
        if w.read.found.length > 0:
            slow_note(&w.partition.log.slow_reads, began_ns)
            began_ns = monotonic_ns()
        q.found_bytes += w.read.found.length
        left = max(<int64_t>0, left - w.read.found.length)
    settled[0] |= q.found_bytes >= q.min_bytes
    f.noting = 0
    return True


cdef bint fetch_operation(conn_t* c, operation_t** op) noexcept nogil:
    """Make sure that a request that may wait has an operation; False without memory."""
    if op[0] == NULL:
        op[0] = operation_new(c, 0)
    return op[0] != NULL


cdef bint fetch_is_read_first(fetcher_t* f, conn_t* c, operation_t** op) noexcept nogil:
    """True if records for the response are not in the page cache. A reader then reads them, and notifies the
    operation."""
    cdef fetch_t* q = &f.request
    cdef int64_t left = min(<int64_t>q.max_bytes, f.bytes_max), most
    cdef cold_t* cold = NULL
    cdef wanted_t* w
    cdef int32_t i
    if op[0] != NULL and op[0].fetch.is_warm:
        op[0].fetch.is_warm = 0
        return False
    if op[0] != NULL and op[0].fetch.reading:
        return True
    for i in range(q.count):
        w = &q.wanted[i]
        most = min(<int64_t>w.most, left)
        if reader_is_cold(w.partition.log, w.offset, most, &c.requests.warm):
            if cold == NULL and fetch_operation(c, op):
                cold = cold_new(f.warmed, op[0])
            if cold != NULL:
                cold_wish(cold, w.partition.log, w.offset, most)
            left -= most
        if left <= 0:
            break
    if cold == NULL:
        return False
    op[0].refs += 1              # before it can notify
    op[0].fetch.reading = 1
    if cold_put(cold):
        return True
    op[0].refs -= 1
    op[0].fetch.reading = 0
    return False


cdef bint fetch_is_slow(const fetch_t* q) noexcept nogil:
    """True if one of the partitions has a disk that a reactor may have to wait for."""
    cdef int32_t i
    for i in range(q.count):
        if slow_is(&q.wanted[i].partition.log.slow_reads):
            return True
    return False


# -- quotas ------------------------------------------------------------------------------------------------------------

cdef bint fetch_is_throttled(fetcher_t* f, conn_t* c) noexcept nogil:
    """Record the found bytes, and set the throttle time of the response; True: the response must be empty. The bytes
    around the records are estimated."""
    cdef fetch_t* q = &f.request
    cdef bint refused = False
    if f.throttle != NULL and q.replica >= 0:
        count_replicated(f)
    if f.counted == NULL:
        return False
    q.throttle_ms = quotas_fetched(
        f.counted, q.found_bytes + ANSWER_BYTES + q.count * PARTITION_BYTES, f.now_ms, &refused)
    c.limits.throttle_ms = q.throttle_ms
    return refused


# -- waiting -----------------------------------------------------------------------------------------------------------

cdef void fetch_await_reader(fetcher_t* f, operation_t* op, bint again, int64_t now_ms) noexcept nogil:
    op.fetch.is_unnoted = f.noting
    if not again:
        op.timer.deadline_ms = now_ms + max(<int64_t>f.request.max_wait_ms, <int64_t>READ_MS_MAX)


cdef void fetch_await_records(fetcher_t* f, operation_t* op, bint again, int64_t now_ms) noexcept nogil:
    cdef int64_t until_ms = now_ms + f.request.max_wait_ms + 1  # + 1, as the clock is truncated to ms: never too short
    if f.request.withheld_ms > 0:
        until_ms = min(until_ms, now_ms + max(f.request.withheld_ms, <int64_t>WITHHELD_MS_MIN))
    if not again or op.timer.deadline_ms > until_ms:
        op.timer.deadline_ms = until_ms
