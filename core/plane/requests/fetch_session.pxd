# Fetch sessions (KIP-227): the partitions that a client keeps fetching, and their state in its last response.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.partition.partition cimport partition_t, watch_t

cdef enum:
    SESSION_BUCKETS = 1024
    TRACKED_MAX = 1 << 20        # partitions of all sessions together; above that there are no new sessions

ctypedef void (*waiter_fn)(waiter_t* w) noexcept nogil

cdef struct waiter_t:            # notified of a session's news, until it leaves
    waiter_fn notify             # called with the session's news lock held: it may only leave a note
    void* owner

cdef struct tracked_t:           # one partition of a session
    link_t rotation               # the order in which partitions are returned
    link_t news                  # in its session's news
    watch_t watch  # when notified the partition becomes news; a check of the partition sets the watch again
    session_t* session
    tracked_t* next_same         # in its bucket
    partition_t* partition       # held
    int64_t offset
    int64_t told_high_watermark  # in the last response; -1: report it again
    int64_t told_log_start
    int32_t most
    int32_t leader_epoch         # known to the client; -1 none
    int32_t last_epoch           # of the client's last record; -1 not given
    int64_t log_start            # of a follower; -1 not given
    uint32_t hash

cdef struct session_t:
    link_t used                  # in the cache; this, the times and the size are under its lock
    session_t* next_same
    int64_t created_ms
    int64_t used_ms
    int32_t size                 # its partitions as counted by the cache
    int32_t refs
    int32_t id
    int32_t by_id                # its client uses topic ids
    pthread_mutex_t lock         # guards the following; locked before the cache's
    int32_t epoch                # of the next request
    int64_t looked_ms            # when all partitions were last checked
    int64_t noted_ms             # when a follower's fetch positions were last recorded for all partitions
    chain_t tracked              # its partitions
    uint32_t bucket_count        # a power of two
    tracked_t** buckets
    pthread_mutex_t news_lock    # guards the rest; no lock is taken under it but those of waiter.notify
    chain_t news                 # partitions that may have something to return
    int64_t tells                # number of notifications
    waiter_t* waiter

cdef struct sessions_t:          # the cache of a broker
    pthread_mutex_t lock
    int64_t slots
    int64_t partitions
    chain_t used                 # all sessions, the longest unused first
    session_t* table[<int>SESSION_BUCKETS]

cdef void sessions_init(sessions_t* cache, int64_t slots) noexcept nogil
cdef void sessions_destroy(sessions_t* cache) noexcept nogil
cdef int sessions_begin(sessions_t* cache, int32_t id, int32_t epoch, bint by_id, session_t** out) noexcept nogil
cdef int32_t sessions_add(sessions_t* cache, session_t* s, int64_t now_ms) noexcept nogil
cdef void sessions_touch(sessions_t* cache, session_t* s, int64_t now_ms) noexcept nogil
cdef void sessions_remove(sessions_t* cache, int32_t id) noexcept nogil
cdef void sessions_leave(sessions_t* cache, partition_t* p) noexcept nogil
cdef session_t* session_new(bint by_id) noexcept nogil
cdef void session_hold(session_t* s) noexcept nogil
cdef void session_drop(session_t* s) noexcept nogil
cdef int32_t session_next_epoch(int32_t epoch) noexcept nogil
cdef tracked_t* session_track(session_t* s, partition_t* p) noexcept nogil
cdef void session_forget(session_t* s, const uint8_t* topic, int32_t length, int32_t index) noexcept nogil
cdef void session_note(session_t* s, tracked_t* t) noexcept nogil
cdef int32_t session_news(session_t* s) noexcept nogil
cdef tracked_t* session_next_news(session_t* s) noexcept nogil
cdef void session_clear_news(session_t* s) noexcept nogil
cdef int64_t session_tells(session_t* s) noexcept nogil
cdef void session_wait(session_t* s, waiter_t* w, int64_t seen) noexcept nogil
cdef void session_leave(session_t* s, waiter_t* w) noexcept nogil
cdef void session_to_end(session_t* s, tracked_t* t) noexcept nogil
