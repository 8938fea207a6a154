"""Fetch sessions: a client sends only changes, the broker keeps the rest (KIP-227).

    full fetch, epoch 0 ---answered---> session, epoch 1 ---(id, 1), (id, 2), ...---> ... 2^31 - 1, then 1 again
                                           \\---epoch 0 or -1 with its id, no partitions, evicted, declined---> gone

The partitions of a session are watched, and become news when a watch is notified: a fetch checks only these, however
many partitions there are. Changes without a notification (of a log start, a failed disk) are found when a fetch checks
all partitions: at its deadline, and every LOOK_MS.

The cache of a broker has a fixed number of sessions. A new one replaces the longest unused one if that is unused for
two minutes, or one created longer ago than that with fewer partitions; else its client continues with full fetches
(Kafka's FetchSessionCache). A session belongs to no connection: any request with its id and the next epoch continues
it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

from pybroker.core.base.atomic cimport add_i32
from pybroker.core.base.chain cimport chain_append, chain_remove, chain_take, link_t
from pybroker.core.base.error_codes cimport (
    FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH,
)
from pybroker.core.base.pthread cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from pybroker.core.base.random cimport getrandom
from pybroker.core.partition.partition cimport (
    TOPIC_ID_BYTES, partition_drop, partition_hash, partition_hold, partition_t, partition_unwatch, watch_t,
)

cdef enum:
    IDLE_MS = 120000             # Kafka's min.incremental.fetch.session.eviction.ms
    EPOCH_MAX = 0x7FFFFFFF
    BUCKETS_MIN = 8


# -- one session's partitions: under its lock --------------------------------------------------------------------------

cdef session_t* session_new(bint by_id) noexcept nogil:
    """A session without partitions, with one reference, the caller's."""
    cdef session_t* s = <session_t*>calloc(1, sizeof(session_t))
    if s == NULL:
        return NULL
    s.buckets = <tracked_t**>calloc(BUCKETS_MIN, sizeof(tracked_t*))
    if s.buckets == NULL:
        free(s)
        return NULL
    s.bucket_count = BUCKETS_MIN
    s.refs = 1
    s.by_id = by_id
    s.epoch = 1
    pthread_mutex_init(&s.lock, NULL)
    pthread_mutex_init(&s.news_lock, NULL)
    return s


cdef void session_hold(session_t* s) noexcept nogil:
    add_i32(&s.refs, 1)


cdef void session_drop(session_t* s) noexcept nogil:
    if add_i32(&s.refs, -1) > 0:
        return
    while s.tracked.first != NULL:
        untrack(s, <tracked_t*>s.tracked.first.owner)
    free(s.buckets)
    pthread_mutex_destroy(&s.lock)
    pthread_mutex_destroy(&s.news_lock)
    free(s)


cdef int32_t session_next_epoch(int32_t epoch) noexcept nogil:
    return 1 if epoch == EPOCH_MAX else epoch + 1


cdef inline const uint8_t* topic_of(const session_t* s, const partition_t* p, int32_t* length) noexcept nogil:
    """A partition's topic, by name or id as the session's client uses."""
    if s.by_id:
        length[0] = TOPIC_ID_BYTES
        return &p.topic_id[0]
    length[0] = p.topic_length
    return <const uint8_t*>&p.topic[0]


cdef bint is_named(
    const session_t* s, const partition_t* p, const uint8_t* topic, int32_t length, int32_t index) noexcept nogil:
    if p.index != index:
        return False
    if s.by_id:
        return memcmp(p.topic_id, topic, TOPIC_ID_BYTES) == 0
    return p.topic_length == length and memcmp(p.topic, topic, length) == 0


cdef tracked_t* look_up(
    session_t* s, uint32_t hash, const uint8_t* topic, int32_t length, int32_t index) noexcept nogil:
    cdef tracked_t* t = s.buckets[hash & (s.bucket_count - 1)]
    while t != NULL and not (t.hash == hash and is_named(s, t.partition, topic, length, index)):
        t = t.next_same
    return t


cdef void untrack(session_t* s, tracked_t* t) noexcept nogil:
    cdef tracked_t** link = &s.buckets[t.hash & (s.bucket_count - 1)]
    while link[0] != t:
        link = &link[0].next_same
    link[0] = t.next_same
    chain_remove(&t.rotation)
    partition_unwatch(&t.watch)  # from here on no notification makes it news
    pthread_mutex_lock(&s.news_lock)
    chain_remove(&t.news)
    pthread_mutex_unlock(&s.news_lock)
    partition_drop(t.partition)
    free(t)


cdef void spread(session_t* s) noexcept nogil:
    """Double the buckets; without memory for them the chains grow."""
    cdef uint32_t n = 2 * s.bucket_count
    cdef tracked_t** larger = <tracked_t**>calloc(n, sizeof(tracked_t*))
    cdef link_t* link = s.tracked.first
    cdef tracked_t* t
    if larger == NULL:
        return
    while link != NULL:
        t = <tracked_t*>link.owner
        t.next_same = larger[t.hash & (n - 1)]
        larger[t.hash & (n - 1)] = t
        link = link.next
    free(s.buckets)
    s.buckets = larger
    s.bucket_count = n


cdef tracked_t* session_track(session_t* s, partition_t* p) noexcept nogil:
    """The entry of a partition in a session: an existing one keeps its place, a new one comes last. NULL: no memory.

    The caller sets the fetch parameters."""
    cdef int32_t length = 0
    cdef const uint8_t* topic = topic_of(s, p, &length)
    cdef uint32_t hash = partition_hash(topic, length, p.index)
    cdef tracked_t* t = look_up(s, hash, topic, length, p.index)
    if t != NULL and t.partition != p:
        untrack(s, t)            # of a deleted topic of that name
        t = NULL
    if t == NULL:
        t = <tracked_t*>calloc(1, sizeof(tracked_t))
        if t == NULL:
            return NULL
        partition_hold(p)
        t.partition = p
        t.session = s
        t.watch.notify = told
        t.watch.owner = t
        t.hash = hash
        t.told_high_watermark = t.told_log_start = -1
        t.next_same = s.buckets[hash & (s.bucket_count - 1)]
        s.buckets[hash & (s.bucket_count - 1)] = t
        chain_append(&s.tracked, &t.rotation, t)
        if <uint32_t>s.tracked.count > s.bucket_count:
            spread(s)
    return t


cdef void session_forget(session_t* s, const uint8_t* topic, int32_t length, int32_t index) noexcept nogil:
    """Remove a partition; an unknown one is no error. The topic is given as this session names topics."""
    cdef tracked_t* t = look_up(s, partition_hash(topic, length, index), topic, length, index)
    if t != NULL:
        untrack(s, t)


cdef void session_to_end(session_t* s, tracked_t* t) noexcept nogil:
    """Move a partition that returned records to the end of the order."""
    chain_remove(&t.rotation)
    chain_append(&s.tracked, &t.rotation, t)


# -- news: the partitions to check ------------------------------------------------------------------------------------

cdef void told(watch_t* w) noexcept nogil:
    """Make a partition news that grew, or was removed. From any thread, under the partition's watch mutex."""
    cdef tracked_t* t = <tracked_t*>w.owner
    cdef session_t* s = t.session
    pthread_mutex_lock(&s.news_lock)
    s.tells += 1
    chain_append(&s.news, &t.news, t)
    if s.waiter != NULL:
        s.waiter.notify(s.waiter)
    pthread_mutex_unlock(&s.news_lock)


cdef void session_note(session_t* s, tracked_t* t) noexcept nogil:
    """Have the session's next fetch check a partition."""
    pthread_mutex_lock(&s.news_lock)
    chain_append(&s.news, &t.news, t)
    pthread_mutex_unlock(&s.news_lock)


cdef int32_t session_news(session_t* s) noexcept nogil:
    """The number of partitions that are news."""
    cdef int32_t count
    pthread_mutex_lock(&s.news_lock)
    count = s.news.count
    pthread_mutex_unlock(&s.news_lock)
    return count


cdef tracked_t* session_next_news(session_t* s) noexcept nogil:
    """Take the first partition of the news; NULL if there is none."""
    cdef tracked_t* t
    pthread_mutex_lock(&s.news_lock)
    t = <tracked_t*>chain_take(&s.news)
    pthread_mutex_unlock(&s.news_lock)
    return t


cdef void session_clear_news(session_t* s) noexcept nogil:
    """Empty the news, before all partitions are checked."""
    while session_next_news(s) != NULL:
        pass


cdef int64_t session_tells(session_t* s) noexcept nogil:
    cdef int64_t tells
    pthread_mutex_lock(&s.news_lock)
    tells = s.tells
    pthread_mutex_unlock(&s.news_lock)
    return tells


cdef void session_wait(session_t* s, waiter_t* w, int64_t seen) noexcept nogil:
    """Notify a waiter of news, in place of the one before; at once, if there were notifications since `seen`."""
    pthread_mutex_lock(&s.news_lock)
    if s.waiter != NULL and s.waiter != w:
        s.waiter.notify(s.waiter)  # it would wait in vain: the session's next request has arrived
    s.waiter = w
    if s.tells != seen:
        w.notify(w)
    pthread_mutex_unlock(&s.news_lock)


cdef void session_leave(session_t* s, waiter_t* w) noexcept nogil:
    """Stop notifying a waiter."""
    pthread_mutex_lock(&s.news_lock)
    if s.waiter == w:
        s.waiter = NULL
    pthread_mutex_unlock(&s.news_lock)


# -- the cache ---------------------------------------------------------------------------------------------------------

cdef void sessions_init(sessions_t* cache, int64_t slots) noexcept nogil:
    pthread_mutex_init(&cache.lock, NULL)
    cache.slots = slots


cdef void sessions_destroy(sessions_t* cache) noexcept nogil:
    while cache.used.first != NULL:
        evict(cache, <session_t*>cache.used.first.owner)
    pthread_mutex_destroy(&cache.lock)


cdef session_t* find(sessions_t* cache, int32_t id) noexcept nogil:
    cdef session_t* s = cache.table[<uint32_t>id % SESSION_BUCKETS]
    while s != NULL and s.id != id:
        s = s.next_same
    return s


cdef void evict(sessions_t* cache, session_t* s) noexcept nogil:
    """Remove a session from the cache; a request that is using it ends with it."""
    cdef session_t** link = &cache.table[<uint32_t>s.id % SESSION_BUCKETS]
    while link[0] != s:
        link = &link[0].next_same
    link[0] = s.next_same
    chain_remove(&s.used)
    cache.partitions -= s.size
    session_drop(s)


cdef int sessions_begin(sessions_t* cache, int32_t id, int32_t epoch, bint by_id, session_t** out) noexcept nogil:
    """The session that a request continues, held and locked; or the error for its client, and nothing."""
    cdef session_t* s
    cdef int status = 0
    pthread_mutex_lock(&cache.lock)
    s = find(cache, id)
    if s != NULL:
        session_hold(s)
    pthread_mutex_unlock(&cache.lock)
    if s == NULL:
        return FETCH_SESSION_ID_NOT_FOUND
    pthread_mutex_lock(&s.lock)
    if s.epoch != epoch:
        status = INVALID_FETCH_SESSION_EPOCH
    elif s.by_id != by_id:
        status = FETCH_SESSION_TOPIC_ID_ERROR
    if status != 0:
        pthread_mutex_unlock(&s.lock)
        session_drop(s)
        return status
    out[0] = s
    return 0


cdef bint make_room(sessions_t* cache, int32_t size, int64_t now_ms) noexcept nogil:
    """Make room for a session of so many partitions; False if no session may be evicted."""
    cdef link_t* link = cache.used.first
    cdef session_t* s
    cdef session_t* victim = NULL
    if cache.partitions + size > TRACKED_MAX or cache.slots <= 0:
        return False
    if cache.used.count < cache.slots:
        return True
    s = <session_t*>link.owner
    if now_ms - s.used_ms > IDLE_MS:
        victim = s
        link = NULL
    while link != NULL:
        s = <session_t*>link.owner
        if now_ms - s.created_ms > IDLE_MS and s.size < (victim.size if victim != NULL else size):
            victim = s
        link = link.next
    if victim == NULL:
        return False
    evict(cache, victim)
    return True


cdef int32_t sessions_add(sessions_t* cache, session_t* s, int64_t now_ms) noexcept nogil:
    """Add a new session to the cache, which takes a reference; its id, 0 if there is no room."""
    cdef int32_t id = 0
    pthread_mutex_lock(&cache.lock)
    if make_room(cache, s.tracked.count, now_ms):
        while id == 0 or find(cache, id) != NULL:
            if getrandom(&id, sizeof(id), 0) != sizeof(id):
                pthread_mutex_unlock(&cache.lock)
                return 0
            id &= EPOCH_MAX
        s.id = id
        s.created_ms = s.used_ms = now_ms
        s.size = s.tracked.count
        s.next_same = cache.table[<uint32_t>id % SESSION_BUCKETS]
        cache.table[<uint32_t>id % SESSION_BUCKETS] = s
        chain_append(&cache.used, &s.used, s)
        cache.partitions += s.size
        session_hold(s)
    pthread_mutex_unlock(&cache.lock)
    return id


cdef void sessions_touch(sessions_t* cache, session_t* s, int64_t now_ms) noexcept nogil:
    """Advance the epoch of a locked session, and update its time of use and its size in the cache."""
    s.epoch = session_next_epoch(s.epoch)
    pthread_mutex_lock(&cache.lock)
    if s.used.chain != NULL:
        chain_remove(&s.used)
        chain_append(&cache.used, &s.used, s)
        s.used_ms = now_ms
        cache.partitions += s.tracked.count - s.size
        s.size = s.tracked.count
    pthread_mutex_unlock(&cache.lock)


cdef void sessions_remove(sessions_t* cache, int32_t id) noexcept nogil:
    """End a session; one that does not exist is no error."""
    cdef session_t* s
    pthread_mutex_lock(&cache.lock)
    s = find(cache, id)
    if s != NULL:
        evict(cache, s)
    pthread_mutex_unlock(&cache.lock)


cdef void sessions_leave(sessions_t* cache, partition_t* p) noexcept nogil:
    """End the sessions that have a partition which is removed, so that they do not hold its files; clients begin new
    ones."""
    cdef const uint8_t* topic
    cdef session_t** all
    cdef link_t* link
    cdef session_t* s
    cdef tracked_t* t
    cdef int64_t i, n = 0
    cdef int32_t length = 0
    pthread_mutex_lock(&cache.lock)
    all = <session_t**>malloc(sizeof(session_t*) * (cache.used.count + 1))
    link = cache.used.first if all != NULL else NULL
    while link != NULL:
        all[n] = <session_t*>link.owner
        session_hold(all[n])
        n += 1
        link = link.next
    pthread_mutex_unlock(&cache.lock)
    for i in range(n):
        s = all[i]
        topic = topic_of(s, p, &length)
        pthread_mutex_lock(&s.lock)
        t = look_up(s, partition_hash(topic, length, p.index), topic, length, p.index)
        pthread_mutex_unlock(&s.lock)
        if t != NULL:
            sessions_remove(cache, s.id)
        session_drop(s)
    free(all)
