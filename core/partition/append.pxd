# Appends and their checks.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.batch.batch cimport HEADER_BYTES, batch_t
from pybroker.core.partition.partition cimport partition_t
from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.log.log_transactions cimport change_t
from pybroker.core.storage.producers.producer_state cimport producer_t

cdef enum:
    FROM_CLIENT = 0
    INTERNAL = 1             # the broker's own batch: control batches pass
    ACKS_ALL = -1
    ACKS_UNSAID = -2         # apply no rule of acks

cdef struct appended_t:
    int64_t base_offset
    int64_t last_offset
    int64_t log_append_time_ms   # -1 unless LogAppendTime
    int64_t log_start
    bint duplicate

cdef struct checked_t:         # a checked batch on its way into a log, alone or with others of the same turn
    checked_t* next
    batch_t batch            # borrows the received bytes
    int32_t leader_epoch     # the client's; -1 none
    int32_t source
    int32_t acks             # of the request: -1, 0, 1, or ACKS_UNSAID
    int32_t status           # 0, DUPLICATE, a Kafka code or -errno
    int64_t guard            # of a transactional batch: what partition_verify gave, NO_GUARD or VERIFIED
    appended_t out
    uint8_t header[<int>HEADER_BYTES]

cdef int partition_check(
    partition_t* p, const uint8_t* data, size_t n, int32_t leader_epoch, int source, int32_t acks,
    checked_t* out) noexcept nogil
cdef void partition_append_checked(partition_t* p, checked_t* first, int64_t now_ms) noexcept nogil
cdef int partition_append(
    partition_t* p, const uint8_t* data, size_t n, int32_t leader_epoch, int source, int32_t acks,
    int64_t guard, int64_t now_ms, appended_t* out) noexcept nogil
cdef int partition_append_marker(
    partition_t* p, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
    int64_t now_ms, appended_t* out) noexcept nogil
cdef bint partition_in_transaction(partition_t* p, const batch_t* b) noexcept nogil
cdef int64_t partition_verify(partition_t* p, int64_t producer_id, int16_t epoch, int32_t first) noexcept nogil
cdef void append_remember(log_t* l, int64_t id, producer_t* before) noexcept nogil
cdef void append_undo(log_t* l, const batch_t* b, const producer_t* before) noexcept nogil
cdef int append_account(log_t* l, const batch_t* b, change_t* out) noexcept nogil
