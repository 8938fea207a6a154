# The control batch that ends a transaction (KIP-98).
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pybroker.core.batch.batch cimport HEADER_BYTES, batch_t

cdef enum:
    MARKER_BYTES = HEADER_BYTES + 17  # of a marker as Kafka and we write it
    MARKER_BODY_MAX = 256        # a control batch with more bytes after its header is no marker of a transaction

cdef enum:
    ABORT = 0
    COMMIT = 1
    NO_MARKER = -1           # no marker of a transaction: emptied by compaction, of another type, or not readable

cdef struct marker_t:
    int16_t type
    int32_t coordinator_epoch

# Read the record of a control batch; `body` has the n bytes after its header.
cdef void marker_read(const batch_t* b, const uint8_t* body, size_t n, marker_t* out) noexcept nogil

# Encode a marker with base offset 0 and without a leader epoch, as a producer's batch, at MARKER_BYTES of room.
cdef void marker_write(
    uint8_t* out, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
    int64_t now_ms) noexcept nogil
