"""A batch on its way to a broker, and the outcome of each of its records."""

from libc.stdint cimport int32_t, int64_t

from pybroker.core.batch.builder cimport SealedBatch, builder_t

cdef class PendingBatch:
    # open (records are added) --seal--> sealed (it is sent, perhaps again) --end--> ended
    cdef builder_t builder          # while it is open
    cdef readonly SealedBatch sealed  # what is sent; None while it is open, and once it has ended
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t count
    cdef readonly double created_s  # of the monotonic clock
    cdef readonly int64_t size      # bytes, as counted against the memory of its producer
    # The sender's.
    cdef public int64_t producer_id
    cdef public int32_t epoch
    cdef public int64_t sequence    # of its first record, -1: none yet
    cdef public int32_t attempts
    # The outcome.
    cdef readonly bint ended
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time_ms
    cdef readonly object error
    cdef list parts                 # of a batch that was split: (first record, base offset, time, error)
    cdef list calls
    cdef object event

    cdef int call_out(self, bint raises) except -1
    cdef tuple outcome(self, int32_t index)
    cdef bint wait(self, timeout_s) except -1

cdef class Delivery:
    cdef PendingBatch batch
    cdef int64_t timestamp_ms
    cdef int32_t index

cdef PendingBatch pending_batch(str topic, int32_t partition, int64_t bytes_hint)
cdef Delivery pending_delivery(PendingBatch batch, int64_t timestamp_ms)
