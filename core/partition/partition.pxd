# A partition: its log, its leader, who watches it grow, and what a reader finds.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint8_t

from pybroker.core.base.chain cimport chain_t, link_t
from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.pthread cimport pthread_mutex_t
from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log cimport found_t, log_t, view_t

cdef enum:
    BOUND_HIGH_WATERMARK = 0
    BOUND_LAST_STABLE = 1
    BOUND_LOG_END = 2        # replicas read to the end
    LARGEST = -0x7FFFFFFFFFFFFFFF  # a timestamp to look for: the largest there is

cdef enum:
    TOPIC_BYTES_MAX = 249    # Kafka's limit
    TOPIC_ID_BYTES = 16

ctypedef void (*notify_fn)(watch_t* w) noexcept nogil

cdef struct watch_t:         # who is to be told that a partition grew, or went; told once, then watches no more
    link_t link
    partition_t* partition   # NULL: watches nothing
    notify_fn notify         # called with the partition's watch mutex held: it may only leave a note
    void* owner

cdef struct partition_t:
    int32_t refs
    int32_t index
    int32_t published        # the native plane serves it
    int32_t native_append    # FULL, ENVELOPE: the native plane may append, and checks this much; 0: it is for Python
    int32_t topic_length
    char topic[<int>TOPIC_BYTES_MAX + 1]
    uint8_t topic_id[<int>TOPIC_ID_BYTES]
    log_t* log
    int32_t leader_epoch
    int32_t partition_epoch
    int64_t lease_deadline_ms    # boot time until which this broker may act as leader alone; without a lease: forever
    pthread_mutex_t watch_mutex
    chain_t watches
    int32_t watched          # how many; 0 costs an append one load

cdef struct read_t:
    found_t found
    view_t view
    int64_t generation

cdef partition_t* partition_new(log_t* l) noexcept nogil
cdef void partition_hold(partition_t* p) noexcept nogil
cdef void partition_drop(void* partition) noexcept nogil
cdef void partition_watch(partition_t* p, watch_t* w) noexcept nogil
cdef void partition_unwatch(watch_t* w) noexcept nogil
cdef void partition_tell(partition_t* p) noexcept nogil
cdef int partition_read(
    partition_t* p, int64_t offset, int64_t most, int bound, bint minimum_one, read_t* out) noexcept nogil
cdef int partition_find(partition_t* p, int64_t timestamp, int64_t bound, batch_t* out) noexcept nogil


cdef inline uint32_t partition_hash(const uint8_t* topic, int32_t length, int32_t index) noexcept nogil:
    """For tables of partitions, by the name of the topic or by its id."""
    return crc32c(topic, length, 0) + <uint32_t>index * <uint32_t>0x9E3779B1
