# Fetch sessions (KIP-227): what a client fetches again and again, and what it was last told of it.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.partition.partition cimport partition_t, watch_t

cdef enum:
    SESSION_BUCKETS = 1024
    TRACKED_MAX = 1 << 20        # partitions of all sessions together; with more there are no new sessions

ctypedef void (*waiter_fn)(waiter_t* w) noexcept nogil

cdef struct waiter_t:            # who is told of a session's news, until it leaves
    waiter_fn notify             # called with the session's news lock held: it may only leave a note
    void* owner

cdef struct tracked_t:           # one partition of a session
    link_t rotation               # in the order in which they have it
    link_t news                  # in its session's news
    watch_t watch                # told: it is among the news, and is watched again when somebody looks at it
    session_t* session
    tracked_t* next_same         # in its bucket
    partition_t* partition       # held
    int64_t offset
    int64_t told_high_watermark  # -1: tell it again
    int64_t told_log_start
    int32_t most
    int32_t leader_epoch         # that the client knows; -1 none
    int32_t last_epoch           # of the last record that it has; -1 where it does not say
    int64_t log_start            # of a follower; -1 where it does not say
    uint32_t hash

cdef struct session_t:
    link_t used                  # in the cache; this and the times and the size under its lock
    session_t* next_same
    int64_t created_ms
    int64_t used_ms
    int32_t size                 # the partitions that the cache counts for it
    int32_t refs
    int32_t id
    int32_t by_id                # its client names topics by id
    pthread_mutex_t lock         # guards what follows; taken before the cache's
    int32_t epoch                # of its next request
    int64_t looked_ms            # when all of it was last looked at
    int64_t noted_ms             # when a follower's request last said of all of it how far the follower is
    chain_t tracked              # what it tracks
    uint32_t bucket_count        # a power of two
    tracked_t** buckets
    pthread_mutex_t news_lock    # guards the rest; a leaf but for what the waiter takes
    chain_t news                 # of what it tracks: what may have something to tell
    int64_t tells                # how often it was told of any
    waiter_t* waiter

cdef struct sessions_t:          # the cache of a broker
    pthread_mutex_t lock
    int64_t slots
    int64_t partitions
    chain_t used                 # all, the one unused for longest first
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
