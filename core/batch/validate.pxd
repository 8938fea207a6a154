# The check of a batch's records against its header, as Kafka's LogValidator does for each produced batch.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_t

cdef enum:
    FULL = 1             # compressed records are decompressed and walked, too
    ENVELOPE = 2         # compressed records are not checked

# Walk the n bytes of the uncompressed records of a client's batch b, whose offset deltas are 0, 1, 2 ...; -1 if they
# are sound, else the index of the first record that cannot be read, b.count if bytes follow the last one.
cdef int64_t records_walk(const uint8_t* p, size_t n, const batch_t* b) noexcept nogil

# Do batch_check, and walk the records if the batch is a client's and not compressed.
cdef int batch_validate(const uint8_t* p, size_t n, int64_t size_max, bint client, batch_t* out) noexcept nogil

# Decompress the records of a client's batch and walk them. Return their size, -1 if Python must check the batch: it is
# too large for a connection's thread, or bad.
cdef int64_t batch_look_inside(const batch_t* b) noexcept nogil
