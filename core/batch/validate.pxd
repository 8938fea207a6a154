# Do the records of a batch agree with its header? What Kafka's LogValidator asks of each batch that a client sends.
from libc.stdint cimport int64_t, uint8_t

from pybroker.core.batch.batch cimport batch_t

cdef enum:
    FULL = 1             # compressed records are undone and walked, too
    ENVELOPE = 2         # they are not looked at

# Walks the n bytes of the uncompressed records of a client's batch b, whose offset deltas are 0, 1, 2 ...; -1 if they
# are sound, else the index of the first record that cannot be read, and b.count where bytes follow the last one.
cdef int64_t records_walk(const uint8_t* p, size_t n, const batch_t* b) noexcept nogil

# batch_check, and the walk where the batch is a client's and not compressed.
cdef int batch_validate(const uint8_t* p, size_t n, int64_t size_max, bint client, batch_t* out) noexcept nogil

# Undoes the compressed records of a client's batch and walks them: the bytes that came out, -1 where that is not for
# the thread of a connection (large ones), or where something is wrong, which Python says.
cdef int64_t batch_look_inside(const batch_t* b) noexcept nogil
