# The changes that a batch makes to its producer, and to the transactions of its log.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_t
from pybroker.core.storage.log.log cimport log_t
from pybroker.core.storage.producers.producer_state cimport sequence_t
from pybroker.core.storage.producers.transactions cimport transactions_t
from pybroker.core.storage.segment.segment cimport segment_t

cdef enum:
    CHANGES_MAX = 64             # batches that are written by one call

cdef struct change_t:        # of a transaction, by one batch
    int64_t producer_id
    int64_t first            # the transaction's first offset; -1: the batch neither begins nor ends one
    int64_t marker           # the offset of the batch that ends it; -1: the batch begins it
    bint aborted

# Update the producer state with a batch that is about to be in the log. `body`: the n bytes after its header, used if
# it is a control batch. 0 or -ENOMEM.
cdef int producers_see(
    sequence_t* s, const batch_t* b, const uint8_t* body, size_t n, change_t* out) noexcept nogil

cdef int change_apply(
    transactions_t* t, segment_t* s, const change_t* change, int64_t high_watermark) noexcept nogil
cdef int log_reserve_changes(log_t* l, bint ends) noexcept nogil
cdef int log_note_changes(log_t* l, segment_t* s, const change_t* changes, int64_t n) noexcept nogil
cdef void log_begin_restore(log_t* l, int64_t end) noexcept nogil
cdef int log_take_open(log_t* l) noexcept nogil
cdef void log_end_restore(log_t* l) noexcept nogil
