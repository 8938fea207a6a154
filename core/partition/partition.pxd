# A partition: its log, its role, its followers and watchers, and reads.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t

from pybroker.core.base.atomic cimport load_i64
from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.log cimport found_t, log_t, view_t

cdef enum:
    BOUND_HIGH_WATERMARK = 0
    BOUND_LAST_STABLE = 1
    BOUND_LOG_END = 2        # replicas read to the end
    BOUND_ISR = 3            # not an offset: watches for a follower outside the ISR that has caught up
    LARGEST = -0x7FFFFFFFFFFFFFFF  # as the timestamp of a look-up: the largest timestamp in the log

cdef enum:
    OFFLINE = 0              # no role yet, or stopped by the controller
    FOLLOWER = 1
    LEADER = 2

cdef enum:
    COMMITTED = 0            # watchers of the high watermark and the last stable offset: consumers and acks
    WRITTEN = 1              # watchers of the log's end: followers
    JOINING = 2              # watchers for followers that may join the ISR
    WATCH_LISTS = 3

cdef enum:
    TOPIC_BYTES_MAX = 249    # Kafka's limit
    TOPIC_ID_BYTES = 16

ctypedef void (*notify_fn)(watch_t* w) noexcept nogil

cdef struct watch_t:         # a one-shot watch: notified when a partition grows or goes away
    link_t link
    int64_t above            # notified when its bound is beyond this offset
    int32_t bound            # BOUND_...
    partition_t* partition   # NULL: not set
    notify_fn notify         # called with the partition's watch mutex held: it must not block
    void* owner

cdef struct watchers_t:
    chain_t chain
    int32_t count            # if it is 0, an append loads only this

cdef struct role_t:          # this broker's role in the partition; both epochs are stored only here
    int64_t kind             # OFFLINE, FOLLOWER or LEADER
    int64_t leader           # the leader, if it is another broker; -1 unknown
    int64_t leader_epoch     # -1 unknown
    int64_t partition_epoch

cdef struct follower_t:      # another replica, as the leader knows it
    int32_t broker
    int32_t in_isr           # in the maximal ISR, which includes followers about to join
    int32_t adding           # a reassignment adds it: it counts as a replica once it is in the ISR
    int64_t broker_epoch     # of its latest fetch; -1 unknown
    int64_t log_end          # its latest fetch offset; -1: no fetch yet in this leader epoch
    int64_t leader_end       # our log's end at that fetch
    int64_t log_start        # its log start at that fetch; -1: unknown
    int64_t fetched_ms
    int32_t session          # fetch session of its latest fetch, and that fetch's epoch in it; 0: none
    int32_t session_epoch
    int64_t earlier_ms       # when the fetch before that was noted, in the same session; -1: there was none
    int64_t asked_after_ms   # its latest fetch was sent after this time; -1: unknown
    int64_t caught_up_ms     # when it last had all of our log

cdef struct partition_t:
    int32_t refs
    int32_t index
    int32_t published        # the native plane serves it
    int32_t native_append    # FULL, ENVELOPE: the native plane may append, after this check; 0: only Python may
    int32_t topic_length
    char topic[<int>TOPIC_BYTES_MAX + 1]
    uint8_t topic_id[<int>TOPIC_ID_BYTES]
    log_t* log
    uint32_t role_lock       # the seqlock over `role`
    role_t role              # changed under the append mutex
    int32_t alone            # it leads without followers: written records are committed
    int32_t follower_count   # this, the followers and the size of the ISR under the log's view mutex
    int64_t isr_size         # of the ISR that the controller knows, including ourselves; 0 if we do not lead
    int64_t replica_count    # including ourselves, without those outside the ISR that are being added; 0: no leader
    int64_t min_isr          # min.insync.replicas
    int32_t leader_throttled    # fetches by followers outside the ISR count as throttled replication
    int32_t follower_throttled  # records that we copy while we lag count as throttled replication
    int64_t opened_ms        # when it began to lead in this epoch (monotonic); under the append mutex
    int64_t epoch_start      # the log's end when it began to lead in this epoch; under the view mutex
    int64_t lead_start       # the log's end when it began to lead, in this epoch or in earlier ones without a gap
    follower_t* followers    # of a leader
    pthread_mutex_t watch_mutex
    watchers_t watchers[<int>WATCH_LISTS]

cdef struct read_t:
    found_t found
    view_t view
    int64_t generation

cdef partition_t* partition_new(log_t* l) noexcept nogil
cdef void partition_hold(partition_t* p) noexcept nogil
cdef void partition_drop(void* partition) noexcept nogil
cdef void partition_role(partition_t* p, role_t* out) noexcept nogil
cdef void partition_watch(partition_t* p, watch_t* w, int bound, int64_t above) noexcept nogil
cdef void partition_unwatch(watch_t* w) noexcept nogil
cdef void partition_tell(partition_t* p) noexcept nogil
cdef void partition_tell_all(partition_t* p) noexcept nogil
cdef void partition_tell_joining(partition_t* p) noexcept nogil
cdef int partition_read(
    partition_t* p, int64_t offset, int64_t most, int bound, bint minimum_one, read_t* out) noexcept nogil
cdef int partition_find(partition_t* p, int64_t timestamp, int64_t bound, batch_t* out) noexcept nogil


cdef inline bint partition_leads(partition_t* p) noexcept nogil:
    return load_i64(&p.role.kind) == LEADER


cdef inline int64_t bound_of(const view_t* v, int bound) noexcept nogil:
    """The offset that a reader with this bound sees up to."""
    if bound == BOUND_LAST_STABLE:
        return v.last_stable
    return v.high_watermark if bound == BOUND_HIGH_WATERMARK else v.log_end


cdef inline uint32_t partition_hash(const uint8_t* topic, int32_t length, int32_t index) noexcept nogil:
    """The hash of a partition, for tables by topic name or topic id."""
    return crc32c(topic, length, 0) + <uint32_t>index * <uint32_t>0x9E3779B1
