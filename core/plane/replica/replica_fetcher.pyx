"""A connection to a leader: the partitions fetched over it, and their state in the leader's fetch session (KIP-227).

    add ──> ADDED ──the reactor takes it──> FETCHED ──removed, diverged, or failed──> OUT ──add──> ADDED, as a new entry

Python adds and removes partitions from any thread: it puts them among the fetcher's orders, and rings the reactor's
bell. Only the reactor does the rest. A removed partition has a mark that is checked under the append mutex before each
append: a thread that has locked that mutex once after setting the mark knows that nothing is appended any more.

A removed partition stays in the leader's session until a request names it as forgotten.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from pybroker.core.base.atomic cimport add_i32, load_i32, store_i32
from pybroker.core.base.chain cimport chain_append, chain_remove, chain_take, link_t
from pybroker.core.base.clock cimport monotonic_ns
from pybroker.core.base.protocol cimport FETCH_VERSION_TOPIC_ID
from pybroker.core.base.pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from pybroker.core.partition.partition cimport (
    TOPIC_ID_BYTES, partition_drop, partition_hash, partition_hold, partition_t,
)
from pybroker.core.plane.connection.conn cimport inbox_t
from pybroker.core.plane.connection.mailbox cimport ring
from pybroker.core.plane.requests.wire cimport text_t
from pybroker.core.storage.background.group_commit cimport sync_leave, sync_put, sync_t

cdef enum:
    ASKED_BY_NAME = FETCH_VERSION_TOPIC_ID - 1   # request versions: the last one with topic names,
    ASKED_BY_ID = 17             # and the last one without fields for KRaft only
    TABLE_MIN = 16


cdef const uint8_t* NO_ID = b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"


# -- life --------------------------------------------------------------------------------------------------------------

cdef replica_fetcher_t* replica_fetcher_new() noexcept nogil:
    """A fetcher without a connection, with one reference, the caller's. NULL without memory."""
    cdef replica_fetcher_t* f = <replica_fetcher_t*>calloc(1, sizeof(replica_fetcher_t))
    if f != NULL:
        f.refs = 1
        f.version = ASKED_BY_ID
    return f


cdef void replica_fetcher_drop(replica_fetcher_t* f) noexcept nogil:
    if add_i32(&f.refs, -1) == 0:
        free(f.table)
        free(f)


cdef void fetched_drop(fetched_t* q) noexcept nogil:
    if add_i32(&q.refs, -1) == 0:
        partition_drop(q.partition)
        free(q)


cdef void replica_fetcher_end(replica_fetcher_t* f) noexcept nogil:
    """End the fetcher with its connection; it takes no more orders."""
    cdef fetched_t* q
    pthread_mutex_lock(&f.inbox.lock)
    f.is_over = 1
    chain_remove(&f.told)
    pthread_mutex_unlock(&f.inbox.lock)
    f.conn = NULL
    while f.orders.first != NULL:
        fetched_drop(<fetched_t*>chain_take(&f.orders))
    replica_fetcher_forget_all(f)
    while f.listed.first != NULL:
        q = <fetched_t*>chain_take(&f.listed)
        chain_remove(&q.changed)
        fetched_drop(q)
    replica_fetcher_drop(f)


# -- orders ------------------------------------------------------------------------------------------------------------

cdef void tell(replica_fetcher_t* f, fetched_t* q) noexcept nogil:
    """Have the reactor check a partition (NULL: only the fetcher). From any thread."""
    pthread_mutex_lock(&f.inbox.lock)
    if not f.is_over:
        if q != NULL and chain_append(&f.orders, &q.told, q):
            add_i32(&q.refs, 1)
        if chain_append(&f.inbox.fetchers, &f.told, f) and not f.inbox.rung:
            f.inbox.rung = 1
            ring(f.inbox.bell)
    pthread_mutex_unlock(&f.inbox.lock)


cdef fetched_t* replica_fetcher_add(
    replica_fetcher_t* f, partition_t* p, int32_t leader_epoch, int64_t begin, int64_t leader_end, int64_t id
) noexcept nogil:
    """Fetch a partition from its log end offset, or from `begin` if that is larger; a reference for the caller, or NULL
    without memory. `leader_end`: the high watermark that its leader reported before, or -1."""
    cdef fetched_t* q = <fetched_t*>calloc(1, sizeof(fetched_t))
    if q == NULL:
        return NULL
    q.refs = 1
    q.id = id
    q.leader_epoch = leader_epoch
    q.begin = begin
    q.partition = p
    q.leader_end = leader_end
    partition_hold(p)
    tell(f, q)
    return q


cdef void replica_fetcher_take_away(replica_fetcher_t* f, fetched_t* q, bint wait) noexcept nogil:
    """Stop fetching a partition. No append to it begins after this; with `wait` none is running any more."""
    store_i32(&q.gone, 1)
    if wait:
        pthread_mutex_lock(&q.partition.log.append_mutex)
        pthread_mutex_unlock(&q.partition.log.append_mutex)
    tell(f, q)


cdef void replica_fetcher_close(replica_fetcher_t* f) noexcept nogil:
    """End the connection."""
    store_i32(&f.is_ending, 1)
    tell(f, NULL)


cdef bint replica_fetcher_take_orders(replica_fetcher_t* f) noexcept nogil:
    """Take the partitions that Python added and removed; False if Python closes the connection."""
    cdef fetched_t* q
    while True:
        pthread_mutex_lock(&f.inbox.lock)
        q = <fetched_t*>chain_take(&f.orders)
        pthread_mutex_unlock(&f.inbox.lock)
        if q == NULL:
            return not load_i32(&f.is_ending)
        if q.state == ADDED and not load_i32(&q.gone):
            admit(f, q)
        elif q.state == ADDED:
            q.state = OUT
        elif q.state == FETCHED:
            replica_fetcher_let_go(f, q)
        fetched_drop(q)


# -- the disk ----------------------------------------------------------------------------------------------------------

cdef void flushed(sync_t* s) noexcept nogil:
    """Notify the reactor that a log is on disk, or that the sync failed. From the syncer's thread, or the reactor's."""
    cdef fetched_t* q = <fetched_t*>s.owner
    cdef inbox_t* box = q.fetcher.inbox
    pthread_mutex_lock(&box.lock)
    chain_append(&box.flushed, &q.flushed, q)
    if not box.rung:
        box.rung = 1
        ring(box.bell)
    pthread_mutex_unlock(&box.lock)


cdef void replica_fetcher_flush(replica_fetcher_t* f, fetched_t* q, int64_t end) noexcept nogil:
    """Make a partition's log durable up to `end`, and notify its inbox."""
    add_i32(&q.refs, 1)
    add_i32(&f.refs, 1)
    q.fetcher = f
    if f.flushing == 0:
        f.flushing_ns = monotonic_ns()
    f.flushing += 1
    f.inbox.operations += 1      # the reactor is not freed before it is notified
    sync_put(&q.sync, q.partition.log, end, flushed, q)


cdef void replica_fetcher_flushed(fetched_t* q) noexcept nogil:
    """End a sync of which the reactor was notified; its result is in `sync.status`."""
    cdef replica_fetcher_t* f = q.fetcher
    sync_leave(&q.sync)
    q.sync.log = NULL
    f.flushing -= q.state == FETCHED
    f.inbox.operations -= 1
    fetched_drop(q)
    replica_fetcher_drop(f)


# -- what is fetched ---------------------------------------------------------------------------------------------------

cdef inline bint is_nameless(const partition_t* p) noexcept nogil:
    return memcmp(p.topic_id, NO_ID, TOPIC_ID_BYTES) == 0


cdef bint is_same(const partition_t* a, const partition_t* b) noexcept nogil:
    """True if a request's topic and index name both."""
    return (a.index == b.index and memcmp(a.topic_id, b.topic_id, TOPIC_ID_BYTES) == 0
            and a.topic_length == b.topic_length and memcmp(a.topic, b.topic, a.topic_length) == 0)


cdef void admit(replica_fetcher_t* f, fetched_t* q) noexcept nogil:
    """Put a partition into the next request. If the leader's session still has it, it stays there."""
    cdef link_t* link = f.forgotten.first
    cdef fetched_t* old
    while link != NULL:
        old = <fetched_t*>link.owner
        link = link.next
        if is_same(old.partition, q.partition):
            chain_remove(&old.listed)
            fetched_drop(old)
    q.state = FETCHED
    add_i32(&q.refs, 1)
    f.nameless += is_nameless(q.partition)
    f.is_table_stale = 1
    chain_append(&f.listed, &q.listed, q)
    chain_append(&f.changed, &q.changed, q)
    f.has_new = 1


cdef void replica_fetcher_let_go(replica_fetcher_t* f, fetched_t* q) noexcept nogil:
    """Ignore later responses for a partition, and have the next request forget it. Its disk is not waited for."""
    q.state = OUT
    f.flushing -= q.sync.log != NULL
    f.nameless -= is_nameless(q.partition)
    f.is_table_stale = 1
    chain_remove(&q.changed)
    chain_remove(&q.listed)
    if q.is_asked and (f.session_id != 0 or f.awaiting):
        chain_append(&f.forgotten, &q.listed, q)
    else:
        fetched_drop(q)


cdef void replica_fetcher_forget_all(replica_fetcher_t* f) noexcept nogil:
    """Drop forgotten partitions that are in no session of the leader."""
    while f.forgotten.first != NULL:
        fetched_drop(<fetched_t*>chain_take(&f.forgotten))


cdef void replica_fetcher_forget_session(replica_fetcher_t* f) noexcept nogil:
    """Make the next request a full one, by topic ids if all topics have one."""
    cdef int32_t version = ASKED_BY_NAME if f.nameless > 0 else ASKED_BY_ID
    f.is_table_stale |= version != f.version
    f.version = version
    f.session_id = f.session_epoch = 0


# -- by topic and index ------------------------------------------------------------------------------------------------

cdef inline void key_of(const replica_fetcher_t* f, const partition_t* p, text_t* out) noexcept nogil:
    """The topic key that responses use."""
    if f.version >= FETCH_VERSION_TOPIC_ID:
        out.at = &p.topic_id[0]
        out.length = TOPIC_ID_BYTES
    else:
        out.at = <const uint8_t*>p.topic
        out.length = p.topic_length


cdef int index_all(replica_fetcher_t* f) noexcept nogil:
    """Update the table; 0 or -ENOMEM."""
    cdef int32_t size = max(f.table_size, <int32_t>TABLE_MIN)
    cdef fetched_t** table
    cdef fetched_t* q
    cdef link_t* link = f.listed.first
    cdef text_t key
    cdef uint32_t i
    if not f.is_table_stale:
        return 0
    while size < 2 * f.listed.count:
        size *= 2
    if size > f.table_size:
        table = <fetched_t**>calloc(size, sizeof(fetched_t*))
        if table == NULL:
            return -ENOMEM
        free(f.table)
        f.table = table
        f.table_size = size
    else:
        memset(f.table, 0, size * sizeof(fetched_t*))
    while link != NULL:
        q = <fetched_t*>link.owner
        key_of(f, q.partition, &key)
        i = partition_hash(key.at, key.length, q.partition.index) & <uint32_t>(size - 1)
        while f.table[i] != NULL:
            i = (i + 1) & <uint32_t>(size - 1)
        f.table[i] = q
        link = link.next
    f.is_table_stale = 0
    return 0


cdef fetched_t* replica_fetcher_find(replica_fetcher_t* f, const text_t* topic, int32_t index) noexcept nogil:
    """The partition that a response names; NULL if it is not fetched."""
    if index_all(f) < 0 or f.table_size == 0:
        return NULL
    return look_up(f, topic, index)


cdef fetched_t* look_up(const replica_fetcher_t* f, const text_t* topic, int32_t index) noexcept nogil:
    cdef uint32_t mask = <uint32_t>(f.table_size - 1)
    cdef uint32_t i = partition_hash(topic.at, topic.length, index) & mask
    cdef fetched_t* q = f.table[i]
    cdef text_t key
    while q != NULL:
        key_of(f, q.partition, &key)
        if q.partition.index == index and key.length == topic.length and memcmp(key.at, topic.at, key.length) == 0:
            return q
        i = (i + 1) & mask
        q = f.table[i]
    return NULL
