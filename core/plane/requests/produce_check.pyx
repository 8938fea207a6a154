"""The checks of a produced batch that decide whether it is appended without Python: its records, its transaction.

A transactional batch is appended here if a transaction of its producer and epoch is open in the partition. Otherwise
Python asks the coordinator first. Another thread may end the transaction before the append, which then refuses the
batch, as it would in Kafka.
"""

from libc.stdint cimport int16_t, int64_t

from pybroker.core.base.atomic cimport load_i32
from pybroker.core.base.protocol cimport PRODUCE_VERSION_ZSTD
from pybroker.core.batch.batch cimport CODEC_ZSTD, TRANSACTIONAL, batch_codec
from pybroker.core.batch.validate cimport ENVELOPE, batch_look_inside
from pybroker.core.partition.append cimport partition_in_transaction

cdef enum:
    PLAIN_REQUEST_MAX = 4 << 20  # decompressed, of the batches of one request; a request with more goes to Python


cdef bint check_inside(
    partition_t* p, const checked_t* r, int16_t version, int64_t plain_most, int64_t* plain_bytes) noexcept nogil:
    """True if a compressed batch may be appended here. If it is invalid, or large, the request goes to Python.
    `plain_bytes`, which grows, may not be more than PLAIN_REQUEST_MAX above `plain_most`."""
    cdef int64_t plain = 0
    if version < PRODUCE_VERSION_ZSTD and batch_codec(&r.batch) == CODEC_ZSTD:
        return False
    if load_i32(&p.native_append) != ENVELOPE:
        if plain_bytes[0] > plain_most + PLAIN_REQUEST_MAX:
            return False
        plain = batch_look_inside(&r.batch)
        plain_bytes[0] += max(plain, <int64_t>0)
    return plain >= 0


cdef bint check_transaction(partition_t* p, const checked_t* r, int64_t* producer_id) noexcept nogil:
    """True if a batch is not transactional, or in an open transaction of the one producer whose batches the request
    has: `producer_id`, -1 before the first."""
    if not r.batch.attributes & TRANSACTIONAL:
        return True
    if producer_id[0] >= 0 and producer_id[0] != r.batch.producer_id:
        return False
    producer_id[0] = r.batch.producer_id
    return partition_in_transaction(p, &r.batch)
