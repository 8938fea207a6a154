# Idempotent producers of one partition: their last batches, in a window in which duplicates are recognised.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from pybroker.core.base.pthread cimport pthread_mutex_t

cdef enum:
    WINDOW = 5                  # batches remembered per producer: a client keeps at most five in flight
    PRODUCERS_MAX = 65536       # per partition; a further one evicts an old one
    SNAPSHOT_HEADER = 10        # version i16, crc u32, count i32
    SNAPSHOT_ENTRY = 46
    DUPLICATE = -100000         # status of sequence_check: the batch is in the window, `seen` has its offsets

cdef struct seen_t:
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta        # last offset - first offset; sequences span the same

cdef struct producer_t:
    int64_t id                  # -1: a free slot
    int64_t last_timestamp
    int64_t txn_first_offset    # of the open transaction; -1 none
    int32_t coordinator_epoch
    int16_t epoch
    int8_t count                # entries of the window in use
    int8_t newest               # index of the newest
    seen_t window[<int>WINDOW]

cdef struct sequence_t:
    producer_t* table           # open addressing, linear probing, a power of two
    int32_t capacity
    int32_t count
    int32_t hand                # where the next eviction begins
    int64_t moved               # grows when entries move to other slots
    int64_t highest_id          # ever seen; -1 none

cdef void sequence_init(sequence_t* s) noexcept nogil
cdef int sequence_copy(sequence_t* s, pthread_mutex_t* guard, sequence_t* out) noexcept nogil
cdef void sequence_free(sequence_t* s) noexcept nogil
cdef producer_t* sequence_find(const sequence_t* s, int64_t id) noexcept nogil
cdef int sequence_check(
    const sequence_t* s, int64_t id, int16_t epoch, int32_t first, int32_t delta, seen_t* seen) noexcept nogil
cdef int sequence_update(
    sequence_t* s, int64_t id, int16_t epoch, int32_t first, int32_t delta, int64_t last_offset, int64_t timestamp,
    bint transactional) noexcept nogil
cdef int sequence_marker(
    sequence_t* s, int64_t id, int16_t epoch, int64_t timestamp, int32_t coordinator_epoch) noexcept nogil
cdef void sequence_close_all(sequence_t* s) noexcept nogil
cdef int sequence_expire(sequence_t* s, int64_t before) noexcept nogil
cdef int sequence_save(const sequence_t* s, uint8_t** data, size_t* n) noexcept nogil
cdef int sequence_load(sequence_t* s, const uint8_t* data, size_t n) noexcept nogil
cdef void sequence_merge(sequence_t* s, sequence_t* newer) noexcept nogil
cdef int sequence_adopt(sequence_t* s, const sequence_t* older, int64_t offset) noexcept nogil
cdef void sequence_put_back(sequence_t* s, int64_t id, const producer_t* old) noexcept nogil
