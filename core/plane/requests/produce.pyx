"""Produce without Python: valid requests are executed here, all others are left to Python unchanged.

A request is read twice. First every topic, partition and batch is checked; only if all of them can be appended here the
response is written, with room for the results of the append. The appends of one turn are gathered by partition and made
together at its end (`produce_drain`), before any response is sent. Request v3-13, response v3-13; acks 0, 1 and all are
the same with one replica.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t, uintptr_t

from pybroker.core.base.atomic cimport load_i32, load_i64
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.counters cimport OF_PRODUCE
from pybroker.core.base.cursor cimport (
    OK, cursor_init, cursor_left, cursor_t, read_i16, read_i32, read_span, store_be16, store_be32, store_be64,
    write_i16, write_i32, write_i64, write_i8, write_span, writer_init, writer_t,
)
from pybroker.core.base.error_codes cimport (
    KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT,
)
from pybroker.core.base.frame cimport AT_CORRELATION_ID, SIZE_BYTES
from pybroker.core.base.protocol cimport (
    PRODUCE_BYTES_PARTITION_RESPONSES, PRODUCE_BYTES_RESPONSES, PRODUCE_TAG_CURRENT_LEADER,
    PRODUCE_VERSION_CURRENT_LEADER, PRODUCE_VERSION_FLEXIBLE, PRODUCE_VERSION_LOG_START_OFFSET, PRODUCE_VERSION_MAX,
    PRODUCE_VERSION_MIN, PRODUCE_VERSION_RECORD_ERRORS, PRODUCE_VERSION_TOPIC_ID,
)
from pybroker.core.batch.batch cimport CODEC_NONE, batch_codec
from pybroker.core.partition.append cimport FROM_CLIENT, checked_t, partition_append_checked, partition_check
from pybroker.core.partition.partition cimport (
    BOUND_HIGH_WATERMARK, LEADER, TOPIC_ID_BYTES, partition_hold, partition_leads, partition_role, partition_t,
    partition_unwatch, partition_watch, role_t,
)
from pybroker.core.partition.registry cimport registry_by_id, registry_by_name, registry_t
from pybroker.core.partition.watermark cimport is_under_min_isr
from pybroker.core.plane.connection.conn cimport conn_position, conn_room, conn_t, conn_wrote
from pybroker.core.plane.connection.operation cimport (
    NEVER, awaited_t, operation_end, operation_list, operation_look, operation_new, operation_t,
)
from pybroker.core.plane.connection.timer cimport timer_set
from pybroker.core.plane.limits.quotas cimport quotas_produced
from pybroker.core.plane.limits.rights cimport RIGHT_WRITE, rights_allow
from pybroker.core.plane.requests.nodes cimport (
    CURRENT_LEADER_BYTES, leaders_add, leaders_bytes, leaders_t, write_current_leader, write_leaders,
)
from pybroker.core.plane.requests.produce_check cimport check_inside, check_transaction
from pybroker.core.plane.requests.verdict cimport DECLINED, DONE, REFUSED, verdict_t
from pybroker.core.plane.requests.wire cimport (
    read_header, read_length, read_text, read_topic, skip_tags, text_t, write_length, write_no_tags, write_text,
)
from pybroker.core.storage.background.group_commit cimport sync_put, sync_unasked
from pybroker.core.storage.log.context cimport lease_is_lost, lease_lapsed
from pybroker.core.storage.log.log cimport log_is_open, log_sync_due, log_view, view_t
from pybroker.core.storage.log.slow_disk cimport slow_is
from pybroker.core.storage.producers.producer_state cimport DUPLICATE

cdef enum:
    AT_ERROR_CODE = 0            # of a partition's response, after its index
    AT_BASE_OFFSET = AT_ERROR_CODE + 2
    AT_LOG_APPEND_TIME = AT_BASE_OFFSET + 8
    AT_LOG_START_OFFSET = AT_LOG_APPEND_TIME + 8
    PARTITION_BYTES = PRODUCE_BYTES_PARTITION_RESPONSES + CURRENT_LEADER_BYTES
    ANSWER_BYTES = 64            # of a response without its topics, at most

cdef struct request_t:
    int32_t correlation
    text_t transactional_id
    int64_t producer_id          # of the transactional batches; -1 none
    int16_t acks
    int32_t timeout_ms
    int32_t topics
    const uint8_t* body          # the position of the topics
    int64_t answer_bytes         # at most
    int64_t throttle_ms


cdef order_t* turn_away(turn_t* t, order_t* o, int32_t listener) noexcept nogil:
    """Make the order of a batch whose partition is not led here: nothing is appended, and the response names the
    leader."""
    cdef role_t role
    partition_role(o.partition, &role)
    o.refused = 1
    o.leader = <int32_t>role.leader
    o.leader_epoch = <int32_t>role.leader_epoch
    o.checked.status = NOT_LEADER_OR_FOLLOWER
    leaders_add(&t.leaders, listener, o.leader)
    t.count += 1
    return o


cdef order_t* check_partition(
    turn_t* t, registry_t* reg, cursor_t* r, int16_t version, request_t* q, const conn_t* c,
    const text_t* topic) noexcept nogil:
    """Decode one partition of a request into a new order; NULL if it cannot be executed here."""
    cdef bint flexible = version >= PRODUCE_VERSION_FLEXIBLE
    cdef order_t* o
    cdef const uint8_t* data = NULL
    cdef int32_t index = 0, n = -1
    if t.count == ORDERS_MAX or read_i32(r, &index) != OK or read_length(r, flexible, &n) != OK or n <= 0:
        return NULL
    if read_span(r, n, &data) != OK or skip_tags(r, flexible) != OK:
        return NULL
    o = &t.orders[t.count]
    if version >= PRODUCE_VERSION_TOPIC_ID:
        o.partition = registry_by_id(reg, topic.at, index)
    else:
        o.partition = registry_by_name(reg, topic.at, topic.length, index)
    if o.partition == NULL or not load_i32(&o.partition.native_append):
        return NULL
    if c.login.rights != NULL and not rights_allow(c.login.rights, o.partition.topic_id, RIGHT_WRITE):
        return NULL              # Python has not granted it yet
    if not partition_leads(o.partition):
        return turn_away(t, o, c.listener)
    o.refused = 0
    if slow_is(&o.partition.log.slow_appends) or not log_is_open(o.partition.log):
        return NULL              # for threads that may wait for the disk
    if load_i32(&o.partition.log.refusing):
        return NULL              # to Python: if the append fails again, its refusal has a message
    if lease_is_lost(o.partition.log.context) or (
            is_under_min_isr(o.partition) if q.acks == -1 else lease_lapsed(o.partition.log.context)):
        return NULL              # to Python: it is refused with a message
    if partition_check(o.partition, data, n, -1, FROM_CLIENT, q.acks, &o.checked) != 0:
        return NULL
    if batch_codec(&o.checked.batch) != CODEC_NONE and not check_inside(
            o.partition, &o.checked, version, t.plain_most, &t.plain_bytes):
        return NULL
    if not check_transaction(o.partition, &o.checked, &q.producer_id):
        return NULL              # Python asks its coordinator
    t.count += 1
    return o


cdef bint check_request(
    turn_t* t, registry_t* reg, cursor_t* r, int16_t version, const conn_t* c, request_t* q) noexcept nogil:
    """Decode a whole request and make its orders; False leaves it, with any error in it, to Python."""
    cdef bint flexible = version >= PRODUCE_VERSION_FLEXIBLE
    cdef text_t topic
    cdef int32_t partitions = 0, _i, _k
    if version < PRODUCE_VERSION_MIN or version > PRODUCE_VERSION_MAX or read_header(r, flexible, &q.correlation) != OK:
        return False
    q.producer_id = -1
    if read_text(r, flexible, &q.transactional_id) != OK or (
            q.transactional_id.at != NULL and c.login.rights != NULL):
        return False             # Python checks the ACLs of transactional ids
    if read_i16(r, &q.acks) != OK or q.acks < -1 or q.acks > 1:
        return False
    if read_i32(r, &q.timeout_ms) != OK or read_length(r, flexible, &q.topics) != OK or q.topics < 0:
        return False
    q.body = r.at
    q.answer_bytes = ANSWER_BYTES
    t.leaders.count = 0
    for _i in range(q.topics):
        if read_topic(r, version >= PRODUCE_VERSION_TOPIC_ID, flexible, &topic, &partitions) != OK or partitions < 0:
            return False
        q.answer_bytes += topic.length + PRODUCE_BYTES_RESPONSES
        for _k in range(partitions):
            if check_partition(t, reg, r, version, q, c, &topic) == NULL:
                return False
            q.answer_bytes += PARTITION_BYTES
        if skip_tags(r, flexible) != OK:
            return False
    if q.producer_id >= 0 and q.transactional_id.at == NULL:
        return False
    q.answer_bytes += leaders_bytes(&t.leaders)
    return skip_tags(r, flexible) == OK and cursor_left(r) == 0


cdef void write_partition(writer_t* w, int16_t version, order_t* o) noexcept nogil:
    """Encode one partition of the response, with room for the results of the append."""
    write_i32(w, o.partition.index)
    o.answer = w.at
    write_i16(w, 0)
    write_i64(w, -1)
    write_i64(w, -1)
    if version >= PRODUCE_VERSION_LOG_START_OFFSET:
        write_i64(w, -1)
    if version >= PRODUCE_VERSION_RECORD_ERRORS:
        write_length(w, version >= PRODUCE_VERSION_FLEXIBLE, 0)
        if version >= PRODUCE_VERSION_FLEXIBLE:
            write_i8(w, 0)       # no error message
        else:
            write_i16(w, -1)
    if o.refused and version >= PRODUCE_VERSION_CURRENT_LEADER:
        write_current_leader(w, PRODUCE_TAG_CURRENT_LEADER, o.leader, o.leader_epoch)
    else:
        write_no_tags(w, version >= PRODUCE_VERSION_FLEXIBLE)


cdef verdict_t write_answer(
    conn_t* c, int16_t version, request_t* q, order_t* orders, const leaders_t* leaders,
    const uint8_t* end) noexcept nogil:
    """Encode the whole response into the connection's output."""
    cdef bint flexible = version >= PRODUCE_VERSION_FLEXIBLE
    cdef uint8_t* room = conn_room(c, q.answer_bytes)
    cdef cursor_t r
    cdef writer_t w
    cdef text_t topic
    cdef const uint8_t* data = NULL
    cdef int32_t partitions = 0, index = 0, n = 0, _i, _k, next_order = 0
    if room == NULL:
        return REFUSED
    writer_init(&w, room, q.answer_bytes)
    write_i32(&w, 0)
    write_i32(&w, q.correlation)
    write_no_tags(&w, flexible)
    write_length(&w, flexible, q.topics)
    cursor_init(&r, q.body, end - q.body)
    for _i in range(q.topics):
        read_topic(&r, version >= PRODUCE_VERSION_TOPIC_ID, version >= PRODUCE_VERSION_FLEXIBLE, &topic, &partitions)
        if version >= PRODUCE_VERSION_TOPIC_ID:
            write_span(&w, topic.at, TOPIC_ID_BYTES)
        else:
            write_text(&w, flexible, &topic)
        write_length(&w, flexible, partitions)
        for _k in range(partitions):
            read_i32(&r, &index)
            read_length(&r, flexible, &n)
            read_span(&r, n, &data)
            skip_tags(&r, flexible)
            write_partition(&w, version, &orders[next_order])
            next_order += 1
        skip_tags(&r, flexible)
        write_no_tags(&w, flexible)
    write_i32(&w, <int32_t>q.throttle_ms)
    if version >= PRODUCE_VERSION_CURRENT_LEADER:
        write_leaders(&w, leaders)
    else:
        write_no_tags(&w, flexible)
    store_be32(room, <int32_t>(w.at - room - SIZE_BYTES))
    conn_wrote(c, w.at - room)
    return DONE


cdef dirty_t* find_dirty(turn_t* t, partition_t* p) noexcept nogil:
    """The turn's chain of appends to a partition."""
    cdef uint64_t i = ((<uint64_t><uintptr_t>p >> 6) * <uint64_t>0x9E3779B97F4A7C15) >> 40
    while True:
        i = i % DIRTY_SLOTS
        if t.slots[i].partition == NULL:
            t.slots[i].partition = p
            t.slots[i].first = t.slots[i].last = NULL
            t.dirty[t.dirty_count] = &t.slots[i]
            t.dirty_count += 1
        if t.slots[i].partition == p:
            return &t.slots[i]
        i += 1


cdef verdict_t produce(turn_t* t, registry_t* reg, conn_t* c, cursor_t* r, int16_t version) noexcept nogil:
    """Execute one Produce request, with the cursor after its api version. The caller is pinned until the drain."""
    cdef request_t q
    cdef int32_t first = t.count, i
    cdef int64_t begin = conn_position(c)
    cdef const uint8_t* end = r.end
    cdef int64_t n = cursor_left(r) + AT_CORRELATION_ID
    cdef order_t* o
    cdef dirty_t* d
    if not check_request(t, reg, r, version, c, &q):
        t.count = first
        return DECLINED
    q.throttle_ms = 0
    if c.limits.quotas != NULL:
        q.throttle_ms = c.limits.throttle_ms = quotas_produced(c.limits.quotas, n, q.acks != 0, t.now_ms)
    if q.acks != 0 and write_answer(c, version, &q, &t.orders[first], &t.leaders, end) != DONE:
        t.count = first
        return REFUSED
    for i in range(first, t.count):
        o = &t.orders[i]
        o.conn = c
        o.version = version
        o.first = first
        o.begin = begin
        o.sync_end = -1
        o.acks_by_ms = t.now_ms + max(0, q.timeout_ms) if q.acks == -1 else -1
        if q.acks == 0:
            o.answer = NULL
        if o.refused:
            continue
        d = find_dirty(t, o.partition)
        if d.last != NULL:
            d.last.next = &o.checked
        else:
            d.first = &o.checked
        d.last = &o.checked
    return DONE


cdef void tell(turn_t* t, order_t* o) noexcept nogil:
    """Write the result of an append into its response."""
    cdef checked_t* a = &o.checked
    cdef int status = 0 if a.status == DUPLICATE else a.status
    if status < 0:
        status = KAFKA_STORAGE_ERROR
    t.errors += status != 0
    if o.answer == NULL:
        if status != 0:
            o.conn.ending.refused = "Produce with acks=0 failed"  # no response can report it
        return
    store_be16(o.answer + AT_ERROR_CODE, <int16_t>status)
    if status == 0:
        store_be64(o.answer + AT_BASE_OFFSET, a.out.base_offset)
        store_be64(o.answer + AT_LOG_APPEND_TIME, a.out.log_append_time_ms)
        if o.version >= PRODUCE_VERSION_LOG_START_OFFSET:
            store_be64(o.answer + AT_LOG_START_OFFSET, a.out.log_start)


cdef void refuse(uint8_t* answer, int16_t version, int error) noexcept nogil:
    """Replace a partition's result in a response by an error."""
    store_be16(answer + AT_ERROR_CODE, <int16_t>error)
    store_be64(answer + AT_BASE_OFFSET, -1)
    store_be64(answer + AT_LOG_APPEND_TIME, -1)
    if version >= PRODUCE_VERSION_LOG_START_OFFSET:
        store_be64(answer + AT_LOG_START_OFFSET, -1)


cdef void hold_back(order_t* o, int64_t end) noexcept nogil:
    """Have the responses of a partition wait for the disk: for new batches, and for duplicates."""
    cdef checked_t* r = &o.checked
    while r != NULL:
        (<order_t*>r).sync_end = end
        r = r.next


cdef inline bint is_there(const order_t* o) noexcept nogil:
    return o.checked.status == 0 or o.checked.status == DUPLICATE


cdef inline bint must_sync(const order_t* o) noexcept nogil:
    return o.sync_end >= 0 and is_there(o)


cdef bint is_replicated(order_t* o) noexcept nogil:
    """True if a response need not wait for the high watermark. Once true it stays true."""
    cdef view_t v
    if o.acks_by_ms >= 0 and is_there(o) and not load_i32(&o.partition.alone):
        log_view(o.partition.log, &v)
        if v.high_watermark <= o.checked.out.last_offset:
            return False
    o.acks_by_ms = -1
    return True


cdef inline bint must_wait(const order_t* o) noexcept nogil:
    return must_sync(o) or o.acks_by_ms >= 0


cdef int32_t prepare(operation_t* op, order_t* orders, int32_t n) noexcept nogil:
    """Fill in what the operation waits for; the number of syncs that will notify it."""
    cdef awaited_t* a = op.produce.awaited
    cdef int32_t i, syncs = 0
    for i in range(n):
        if not must_wait(&orders[i]):
            continue
        partition_hold(orders[i].partition)
        a.partition = orders[i].partition
        a.answer = orders[i].answer
        a.end = -1
        if orders[i].acks_by_ms >= 0:
            a.end = orders[i].checked.out.last_offset + 1
            a.generation = load_i64(&a.partition.log.generation)  # no log is truncated before this turn is over
            op.timer.deadline_ms = orders[i].acks_by_ms
        syncs += must_sync(&orders[i])
        a += 1
    return syncs


cdef void await_all(turn_t* t, order_t* orders, int32_t n, int32_t waiting) noexcept nogil:
    """Have the response of a request wait for so many of its partitions."""
    cdef operation_t* op = operation_new(orders.conn, waiting)
    cdef awaited_t* a
    cdef int32_t i
    if op != NULL:
        op.produce.version = orders.version
        op.produce.since_ns = t.appended_ns
        op.refs = prepare(op, orders, n)  # before the first of them can notify
        operation_list(op, orders.begin)
    if op == NULL or (op.timer.deadline_ms != NEVER and timer_set(t.timers, &op.timer) < 0):
        for i in range(n):
            if must_wait(&orders[i]):
                refuse(orders[i].answer, orders[i].version, KAFKA_STORAGE_ERROR)
        if op != NULL:
            op.refs = 0
            operation_end(t.timers, op)
        return                   # without memory
    a = op.produce.awaited
    for i in range(n):
        if not must_wait(&orders[i]):
            continue
        a.watch.notify = t.told
        a.watch.owner = op
        if must_sync(&orders[i]):
            sync_put(&a.sync, a.partition.log, orders[i].sync_end, t.synced, op)
        a += 1
    if op.timer.deadline_ms != NEVER:
        operation_look(op)       # at once: a change before the watch is set is not notified


cdef bint is_settled(awaited_t* a, bint late) noexcept nogil:
    """True if replicas are not waited for any longer.

    A leader that continues in a later epoch, as it does whenever a follower dies, has kept its appended batches. One
    that was not leader in between may have truncated them."""
    cdef role_t role
    cdef view_t v
    if a.end < 0:
        return True
    partition_watch(a.partition, &a.watch, BOUND_HIGH_WATERMARK, a.end - 1)  # before the check
    log_view(a.partition.log, &v)
    partition_role(a.partition, &role)  # after it, as is the generation: both belong to the log that was read
    if role.kind != LEADER or load_i64(&a.partition.log.generation) != a.generation:
        a.error = NOT_LEADER_OR_FOLLOWER
    elif not load_i32(&a.partition.published):
        a.error = NOT_LEADER_OR_FOLLOWER
    elif v.high_watermark < a.end and lease_is_lost(a.partition.log.context):
        a.error = NOT_LEADER_OR_FOLLOWER  # the followers may follow another leader by now
    elif v.high_watermark < a.end and late:
        a.error = NOT_ENOUGH_REPLICAS_AFTER_APPEND if is_under_min_isr(a.partition) else REQUEST_TIMED_OUT
    elif v.high_watermark < a.end:
        return False
    a.end = -1
    partition_unwatch(&a.watch)
    return True


cdef bint produce_is_settled(operation_t* op, int64_t now_ms) noexcept nogil:
    """True if the response of a Produce may be sent: it waits for nothing any more, or its deadline is over."""
    cdef bint late = now_ms >= op.timer.deadline_ms, settled = True
    cdef int32_t i
    for i in range(op.produce.awaited_count):
        settled &= is_settled(&op.produce.awaited[i], late)
    if load_i32(&op.refs) == 0:
        for i in range(op.produce.awaited_count):
            if op.produce.awaited[i].sync.status != 0:
                op.produce.awaited[i].error = KAFKA_STORAGE_ERROR
    elif late:
        for i in range(op.produce.awaited_count):
            if op.produce.awaited[i].sync.log != NULL:
                op.produce.awaited[i].error = REQUEST_TIMED_OUT
    else:
        settled = False
    return settled


cdef int produce_tell_errors(operation_t* op) noexcept nogil:
    """Replace results that failed since by errors, in a response that waited; their number."""
    cdef int32_t i
    cdef int errors = 0
    for i in range(op.produce.awaited_count):
        if op.produce.awaited[i].error != 0:
            refuse(op.produce.awaited[i].answer, op.produce.version, op.produce.awaited[i].error)
            errors += 1
    return errors


cdef void tell_request(turn_t* t, order_t* orders, int32_t n) noexcept nogil:
    """Complete the response of a request with so many batches, or have it wait."""
    cdef int32_t i, waiting = 0
    for i in range(n):
        tell(t, &orders[i])
        waiting += not is_replicated(&orders[i]) or must_sync(&orders[i])
    t.drained += 1
    if waiting > 0 and orders.answer != NULL:
        t.awaited += 1
        await_all(t, orders, n, waiting)
        return
    orders.conn.output.unsent[<int>OF_PRODUCE] += orders.answer != NULL
    for i in range(n if waiting > 0 else 0):  # with acks=0 no response waits, but the sync is still made
        if must_sync(&orders[i]):
            sync_unasked(orders[i].partition.log, orders[i].sync_end)


cdef bint produce_drain(turn_t* t, int64_t now_ms) noexcept nogil:
    """Append the turn's batches, partition by partition, and complete the responses. False if there were none."""
    cdef int32_t i, n
    cdef int64_t end
    if t.count == 0:
        return False
    t.began_ns = monotonic_ns()
    for i in range(t.dirty_count):
        partition_append_checked(t.dirty[i].partition, t.dirty[i].first, now_ms)
        end = log_sync_due(t.dirty[i].partition.log)
        if end >= 0:
            hold_back(<order_t*>t.dirty[i].first, end)
        t.dirty[i].partition = NULL
    t.appended_ns = monotonic_ns()
    t.drained = t.awaited = 0
    i = 0
    while i < t.count:
        n = i + 1
        while n < t.count and t.orders[n].first == i:
            n += 1
        tell_request(t, &t.orders[i], n - i)
        i = n
    t.count = t.dirty_count = 0
    return True
