"""A producer's batch, from the first append to the outcome of each record."""

from libc.stdint cimport int32_t, int64_t

from pybroker.core.batch.builder cimport SealedBatch, builder_t

cdef class PendingBatch:
    # open (records are appended) --seal--> sealed (it is sent, perhaps again) --end--> ended
    cdef builder_t builder          # while open
    cdef readonly SealedBatch sealed  # the bytes to send; None while open, and after the end
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t count
    cdef readonly double created_s  # monotonic clock
    cdef readonly int64_t size      # bytes, as counted against the producer's memory
    # For the sender.
    cdef public int64_t producer_id
    cdef public int32_t epoch
    cdef public int64_t sequence    # of its first record, -1: none yet
    cdef public int32_t attempts
    # The outcome.
    cdef readonly bint ended
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time_ms
    cdef readonly object error
    cdef list parts                 # of a batch sent in parts: (first record, base offset, time, error)
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
