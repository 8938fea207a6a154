"""Idempotent producers (KIP-98, KIP-360): the rules and the window of five, exactly as Kafka has them.

    <offset>.snapshot   version i16 = 1, crc u32 (CRC-32C of all that follows it), count i32; then for each producer:
                        {producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp
                        i64, coordinator epoch i32, first offset of the open transaction i64 or -1}: 46 bytes,
                        big-endian

A snapshot named N holds the state before offset N, with one batch per producer; the rest of the window is restored from
the batch headers of the log's tail. Sequences run modulo 2^31: after 2147483647 comes 0.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.cursor cimport load_be16, load_be32, load_be64, store_be16, store_be32, store_be64
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.base.status cimport raise_status

cdef enum:
    COPY_PLACES = 1024       # copied at a time: 150 KB, tens of microseconds
    COPY_TRIES = 8           # repeats while entries move; then all slots are copied at once
    FIRST_CAPACITY = 16
    EVICTION_SAMPLE = 64
    SEQUENCE_MAX = 2147483647
    CRC_AT = 2
    CRC_END = CRC_AT + 4


cdef inline int32_t forward(int32_t sequence, int64_t n) noexcept nogil:
    return <int32_t>((<int64_t>sequence + n) & SEQUENCE_MAX)


cdef void sequence_init(sequence_t* s) noexcept nogil:
    s.table = NULL
    s.capacity = 0
    s.count = 0
    s.hand = 0
    s.highest_id = -1
    s.moved = 0


cdef void sequence_free(sequence_t* s) noexcept nogil:
    cdef int64_t moved = s.moved + 1
    free(s.table)
    sequence_init(s)
    s.moved = moved


cdef int copy_places(sequence_t* s, pthread_mutex_t* guard, int32_t step, sequence_t* out) noexcept nogil:
    """Copy all slots, `step` at a time; 1 if entries moved meanwhile, so that one may be missing."""
    cdef int32_t i = 0, n
    cdef int status = 0
    pthread_mutex_lock(guard)
    out[0] = s[0]
    out.table = <producer_t*>malloc(sizeof(producer_t) * (out.capacity + 1))
    if out.table == NULL:
        status = -ENOMEM
    while status == 0 and i < out.capacity:
        n = min(step, out.capacity - i)
        memcpy(&out.table[i], &s.table[i], sizeof(producer_t) * n)
        i += n
        if i < out.capacity:
            pthread_mutex_unlock(guard)  # let a waiting append go first
            pthread_mutex_lock(guard)
            status = s.moved != out.moved
    pthread_mutex_unlock(guard)
    if status != 0:
        free(out.table)
    return status


cdef int sequence_copy(sequence_t* s, pthread_mutex_t* guard, sequence_t* out) noexcept nogil:
    """Copy all producers, each as it was at some moment of the call. `guard`, the mutex of all changes, is held for a
    part of them at a time. The caller frees the copy."""
    cdef int _i, status = 1
    for _i in range(COPY_TRIES):
        if status == 1:
            status = copy_places(s, guard, COPY_PLACES, out)
    return copy_places(s, guard, PRODUCERS_MAX * 2, out) if status == 1 else status


cdef inline int32_t home(const sequence_t* s, int64_t id) noexcept nogil:
    return <int32_t>((<uint64_t>id * <uint64_t>0x9E3779B97F4A7C15) >> 33) & (s.capacity - 1)


cdef producer_t* sequence_find(const sequence_t* s, int64_t id) noexcept nogil:
    cdef int32_t i
    if s.capacity == 0:
        return NULL
    i = home(s, id)
    while s.table[i].id >= 0:
        if s.table[i].id == id:
            return &s.table[i]
        i = (i + 1) & (s.capacity - 1)
    return NULL


cdef producer_t* place(sequence_t* s, int64_t id) noexcept nogil:
    cdef int32_t i = home(s, id)
    while s.table[i].id >= 0:
        i = (i + 1) & (s.capacity - 1)
    return &s.table[i]


cdef int grow(sequence_t* s) noexcept nogil:
    cdef producer_t* old = s.table
    cdef int32_t i, n = s.capacity
    cdef int32_t capacity = n * 2 if n else FIRST_CAPACITY
    cdef producer_t* table = <producer_t*>malloc(sizeof(producer_t) * capacity)
    if table == NULL:
        return -ENOMEM
    for i in range(capacity):
        table[i].id = -1
    s.table = table
    s.capacity = capacity
    s.moved += 1
    for i in range(n):
        if old[i].id >= 0:
            place(s, old[i].id)[0] = old[i]
    free(old)
    return 0


cdef void remove(sequence_t* s, int32_t hole) noexcept nogil:
    """Empty a slot and move later entries of its run back, so that probing never meets a false end."""
    cdef int32_t mask = s.capacity - 1
    cdef int32_t i = hole, wanted
    s.count -= 1
    s.moved += 1
    while True:
        i = (i + 1) & mask
        if s.table[i].id < 0:
            break
        wanted = home(s, s.table[i].id)
        if ((i - wanted) & mask) >= ((i - hole) & mask):
            s.table[hole] = s.table[i]
            hole = i
    s.table[hole].id = -1


cdef void evict(sequence_t* s) noexcept nogil:
    """Remove the longest silent of a sample of producers; one with an open transaction stays."""
    cdef int32_t i, k, looked = 0, oldest = -1
    for k in range(s.capacity):
        i = (s.hand + k) & (s.capacity - 1)
        if s.table[i].id < 0 or s.table[i].txn_first_offset >= 0:
            continue
        if oldest < 0 or s.table[i].last_timestamp < s.table[oldest].last_timestamp:
            oldest = i
        looked += 1
        if looked == EVICTION_SAMPLE:
            break
    s.hand = (s.hand + EVICTION_SAMPLE) & (s.capacity - 1)
    if oldest >= 0:
        remove(s, oldest)


cdef producer_t* enter(sequence_t* s, int64_t id, int16_t epoch) noexcept nogil:
    """The producer's entry, created if it is new; NULL without memory."""
    cdef producer_t* p = sequence_find(s, id)
    if p != NULL:
        return p
    if s.count >= PRODUCERS_MAX:
        evict(s)
    if s.count * 4 >= s.capacity * 3 and grow(s) < 0:
        return NULL
    p = place(s, id)
    p.id = id
    p.epoch = epoch
    p.count = 0
    p.newest = 0
    p.last_timestamp = -1
    p.txn_first_offset = -1
    p.coordinator_epoch = -1
    s.count += 1
    if id > s.highest_id:
        s.highest_id = id
    return p


cdef int sequence_check(
    const sequence_t* s, int64_t id, int16_t epoch, int32_t first, int32_t delta, seen_t* seen) noexcept nogil:
    """Check whether a client may append sequences first .. first + delta: 0, DUPLICATE with `seen`, or a Kafka code."""
    cdef const producer_t* p = sequence_find(s, id)
    cdef int32_t last = forward(first, delta)
    cdef int i
    if p == NULL:
        return 0
    if epoch < p.epoch:
        return INVALID_PRODUCER_EPOCH
    if epoch > p.epoch:
        return 0 if first == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
    for i in range(p.count):
        if p.window[i].last_sequence == last and p.window[i].offset_delta == delta:
            seen[0] = p.window[i]
            return DUPLICATE
    if first == (forward(p.window[p.newest].last_sequence, 1) if p.count else 0):
        return 0
    return OUT_OF_ORDER_SEQUENCE_NUMBER


cdef int sequence_update(
    sequence_t* s, int64_t id, int16_t epoch, int32_t first, int32_t delta, int64_t last_offset, int64_t timestamp,
    bint transactional) noexcept nogil:
    """Add a batch that was appended, or that recovery found, to its producer's window. `first` is -1 for a batch
    without sequences, which the broker itself wrote: the next one begins at 0."""
    cdef producer_t* p = enter(s, id, epoch)
    if p == NULL:
        return -ENOMEM
    if p.epoch != epoch:
        p.epoch = epoch
        p.count = 0
    p.newest = (p.newest + 1) % WINDOW if p.count else 0
    if p.count < WINDOW:
        p.count += 1
    p.window[p.newest].last_sequence = forward(first, delta) if first >= 0 else -1
    p.window[p.newest].offset_delta = delta
    p.window[p.newest].last_offset = last_offset
    p.window[p.newest].timestamp = timestamp
    p.last_timestamp = timestamp
    if transactional and p.txn_first_offset < 0:
        p.txn_first_offset = last_offset - delta
    return 0


cdef void sequence_put_back(sequence_t* s, int64_t id, const producer_t* old) noexcept nogil:
    """Undo an update: restore the producer's state, or remove it (old NULL)."""
    cdef producer_t* p = sequence_find(s, id)
    if p == NULL:
        return
    if old != NULL:
        p[0] = old[0]
    else:
        remove(s, <int32_t>(p - s.table))


cdef int sequence_marker(
    sequence_t* s, int64_t id, int16_t epoch, int64_t timestamp, int32_t coordinator_epoch) noexcept nogil:
    """End the transaction of a producer, by a marker. Epochs are taken over even if they are lower than the known ones:
    replicas and recovery follow the log."""
    cdef producer_t* p = enter(s, id, epoch)
    if p == NULL:
        return -ENOMEM
    if p.epoch != epoch:
        p.epoch = epoch
        p.count = 0
    p.txn_first_offset = -1
    p.last_timestamp = timestamp
    p.coordinator_epoch = coordinator_epoch
    return 0


cdef void sequence_close_all(sequence_t* s) noexcept nogil:
    """Forget all open transactions."""
    cdef int32_t i
    for i in range(s.capacity):
        s.table[i].txn_first_offset = -1


cdef int sequence_expire(sequence_t* s, int64_t before) noexcept nogil:
    """Remove producers silent since `before` (ms) that have no open transaction. Return how many."""
    cdef int32_t i = 0
    cdef int gone = 0
    while i < s.capacity:
        if s.table[i].id >= 0 and s.table[i].last_timestamp < before and s.table[i].txn_first_offset < 0:
            remove(s, i)  # another may have moved here: check this slot again
            gone += 1
        else:
            i += 1
    return gone


cdef int sequence_save(const sequence_t* s, uint8_t** data, size_t* n) noexcept nogil:
    """Encode a snapshot into memory that the caller frees."""
    cdef uint8_t* p
    cdef producer_t* e
    cdef seen_t* newest
    cdef int32_t i
    n[0] = SNAPSHOT_HEADER + <size_t>s.count * SNAPSHOT_ENTRY
    data[0] = <uint8_t*>malloc(n[0])
    if data[0] == NULL:
        return -ENOMEM
    p = data[0]
    store_be16(p, 1)
    store_be32(p + CRC_END, s.count)
    p += SNAPSHOT_HEADER
    for i in range(s.capacity):
        e = &s.table[i]
        if e.id < 0:
            continue
        newest = &e.window[e.newest] if e.count else NULL
        store_be64(p, e.id)
        store_be16(p + 8, e.epoch)
        store_be32(p + 10, newest.last_sequence if newest else -1)
        store_be64(p + 14, newest.last_offset if newest else -1)
        store_be32(p + 22, newest.offset_delta if newest else 0)
        store_be64(p + 26, e.last_timestamp)
        store_be32(p + 34, e.coordinator_epoch)
        store_be64(p + 38, e.txn_first_offset)
        p += SNAPSHOT_ENTRY
    store_be32(data[0] + CRC_AT, crc32c(data[0] + CRC_END, n[0] - CRC_END, 0))
    return 0


cdef int sequence_load(sequence_t* s, const uint8_t* data, size_t n) noexcept nogil:
    """Add the producers of a snapshot. CORRUPT_MESSAGE, and none added, if it is malformed."""
    cdef int64_t count, i
    cdef const uint8_t* p
    cdef producer_t* e
    if n < SNAPSHOT_HEADER or load_be16(data) != 1:
        return CORRUPT_MESSAGE
    count = load_be32(data + CRC_END)
    if count < 0 or n != SNAPSHOT_HEADER + <size_t>count * SNAPSHOT_ENTRY:
        return CORRUPT_MESSAGE
    if crc32c(data + CRC_END, n - CRC_END, 0) != <uint32_t>load_be32(data + CRC_AT):
        return CORRUPT_MESSAGE
    for i in range(count):
        p = data + SNAPSHOT_HEADER + i * SNAPSHOT_ENTRY
        if load_be64(p) < 0:
            continue
        e = enter(s, load_be64(p), load_be16(p + 8))
        if e == NULL:
            return -ENOMEM
        e.last_timestamp = load_be64(p + 26)
        e.coordinator_epoch = load_be32(p + 34)
        e.txn_first_offset = load_be64(p + 38)
        e.count = 0
        if load_be64(p + 14) >= 0:
            e.count = 1
            e.newest = 0
            e.window[0].last_sequence = load_be32(p + 10)
            e.window[0].last_offset = load_be64(p + 14)
            e.window[0].offset_delta = load_be32(p + 22)
            e.window[0].timestamp = e.last_timestamp
    return 0


cdef void sequence_merge(sequence_t* s, sequence_t* tail) noexcept nogil:
    """Fill the windows of a snapshot's producers from the headers of the log's tail.

    The tail ends where the snapshot does: of a producer that both have in the same epoch, the tail only has more
    earlier batches."""
    cdef int32_t i
    cdef producer_t* e
    for i in range(tail.capacity):
        if tail.table[i].id < 0:
            continue
        e = sequence_find(s, tail.table[i].id)
        if e == NULL or e.epoch != tail.table[i].epoch or e.count == 0 or tail.table[i].count == 0:
            continue
        if e.window[e.newest].last_offset == tail.table[i].window[tail.table[i].newest].last_offset:
            e.count = tail.table[i].count
            e.newest = tail.table[i].newest
            e.window = tail.table[i].window


cdef void complete(producer_t* e, producer_t* older, int64_t offset) noexcept nogil:
    """Add to a producer what a snapshot at `offset` has from before the replay's beginning."""
    if e.coordinator_epoch < 0:
        e.coordinator_epoch = older.coordinator_epoch
    if e.count == 0 and e.epoch == older.epoch:
        e.count, e.newest, e.window = older.count, older.newest, older.window
    if 0 <= older.txn_first_offset < e.txn_first_offset < offset:
        e.txn_first_offset = older.txn_first_offset  # it is the same transaction


cdef int sequence_adopt(sequence_t* s, const sequence_t* older, int64_t offset) noexcept nogil:
    """Add the producers of a snapshot at `offset` to a state that was replayed from a later beginning: those that are
    not known yet, and to known ones what the replay did not see."""
    cdef int32_t i
    cdef producer_t* e
    for i in range(older.capacity):
        if older.table[i].id < 0:
            continue
        e = sequence_find(s, older.table[i].id)
        if e != NULL:
            complete(e, &older.table[i], offset)
            continue
        e = enter(s, older.table[i].id, older.table[i].epoch)
        if e == NULL:
            return -ENOMEM
        e[0] = older.table[i]
    return 0


def read_snapshot(str path) -> list:
    """Return the entries of a producer .snapshot file, in file order. Raises LogError(CORRUPT_MESSAGE)."""
    cdef bytes data
    cdef const uint8_t* p
    cdef sequence_t s
    cdef int status
    cdef int i
    with open(path, "rb") as f:
        data = f.read()
    p = data
    sequence_init(&s)
    status = sequence_load(&s, p, len(data))
    sequence_free(&s)
    raise_status(status, f"{path} is not a whole producer snapshot")
    entries = []
    for i in range((len(data) - SNAPSHOT_HEADER) // SNAPSHOT_ENTRY):
        p = <const uint8_t*>data + SNAPSHOT_HEADER + i * SNAPSHOT_ENTRY
        entries.append((
            load_be64(p), load_be16(p + 8), load_be32(p + 10), load_be64(p + 14),
            load_be32(p + 22), load_be64(p + 26), load_be32(p + 34), load_be64(p + 38),
        ))
    return entries
