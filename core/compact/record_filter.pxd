# Filtering the records of a batch for compaction.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_t
from pybroker.core.compact.offset_map cimport offset_map_t
from pybroker.core.compact.transaction_trace cimport trace_t
from pybroker.core.storage.producers.producer_state cimport sequence_t
from pybroker.core.storage.segment.transaction_index cimport aborted_t

cdef enum:
    FAILED_IN_PYTHON = -100005   # a status: a codec raised; the exception is in `Codec.failure`

cdef class Codec:
    cdef object decompress       # (codec, data) -> bytes
    cdef object compress         # (codec, data) -> bytes
    cdef object failure          # the exception that one of them raised

cdef struct buffer_t:            # memory that grows and is reused
    uint8_t* at
    int64_t length
    int64_t capacity

cdef struct filter_t:
    offset_map_t keys
    int64_t keys_from            # the records of [keys_from, keys_end) are in `keys`
    int64_t keys_end
    sequence_t producers         # at the start of the round
    trace_t trace                # of transactions
    int64_t now_ms
    int64_t delete_retention_ms
    int64_t records_dropped
    void* codec                  # a Codec, held by the caller during the round
    buffer_t plain               # a batch's records, decompressed
    buffer_t kept                # the retained ones
    buffer_t shifted             # the same with other timestamp deltas
    buffer_t packed              # the same compressed
    buffer_t made                # the new batch

cdef struct filtered_t:            # a batch to store; size 0: removed
    const uint8_t* at
    int64_t size
    int64_t timestamp            # the largest of its records; -1 without records
    const aborted_t* aborted     # of a marker that stays: its entry of the transaction index; else NULL

cdef int buffer_reserve(buffer_t* b, int64_t n) noexcept nogil
cdef void filter_free(filter_t* s) noexcept nogil
cdef int filter_learn(filter_t* s, const batch_t* b) noexcept nogil
cdef int filter_batch(filter_t* s, const batch_t* b, bint keep_empty, filtered_t* out) noexcept nogil
