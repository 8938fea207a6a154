"""The control batch that ends a transaction: attributes 0x30, one record, base sequence -1, no compression.

    key     version i16 = 0, type i16: 0 ABORT, 1 COMMIT; the other types are for KRaft
    value   version i16 = 0, coordinator epoch i32

A version above 0 has further fields, which are passed over. Compaction leaves an empty control batch where a whole
transaction is gone.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from pybroker.core.base.crc32c cimport crc32c
from pybroker.core.base.cursor cimport (
    OK, cursor_init, cursor_t, load_be16, load_be32, store_be16, store_be32, store_be64,
)
from pybroker.core.batch.batch cimport (
    AT_ATTRIBUTES, AT_BASE_SEQUENCE, AT_BASE_TIMESTAMP, AT_BATCH_LENGTH, AT_COUNT, AT_CRC, AT_LEADER_EPOCH, AT_MAGIC,
    AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, CONTROL, LENGTH_BYTES, MAGIC, TRANSACTIONAL, batch_codec,
    batch_t,
)
from pybroker.core.batch.record cimport record_next, record_t

cdef enum:
    KEY_BYTES = 4
    VALUE_BYTES = 6
    RECORD_BYTES = 16            # after its length


cdef void marker_read(const batch_t* b, const uint8_t* body, size_t n, marker_t* out) noexcept nogil:
    cdef cursor_t r
    cdef record_t record
    out.type = NO_MARKER
    out.coordinator_epoch = -1
    if b.count < 1 or batch_codec(b):
        return
    cursor_init(&r, body, n)
    if record_next(&r, &record) != OK or record.key.size < KEY_BYTES or record.value.size < VALUE_BYTES:
        return
    if load_be16(record.key.at) < 0 or load_be16(record.value.at) < 0:
        return
    if ABORT <= load_be16(record.key.at + 2) <= COMMIT:
        out.type = load_be16(record.key.at + 2)
        out.coordinator_epoch = load_be32(record.value.at + 2)


cdef void marker_write(
    uint8_t* out, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
    int64_t now_ms) noexcept nogil:
    cdef uint8_t* p = out + HEADER_BYTES
    memset(out, 0, MARKER_BYTES)
    store_be32(out + AT_BATCH_LENGTH, <int32_t>(MARKER_BYTES - <int>LENGTH_BYTES))
    store_be32(out + AT_LEADER_EPOCH, -1)
    out[<int>AT_MAGIC] = MAGIC
    store_be16(out + AT_ATTRIBUTES, TRANSACTIONAL | CONTROL)
    store_be64(out + AT_BASE_TIMESTAMP, now_ms)
    store_be64(out + AT_MAX_TIMESTAMP, now_ms)
    store_be64(out + AT_PRODUCER_ID, producer_id)
    store_be16(out + AT_PRODUCER_EPOCH, producer_epoch)
    store_be32(out + AT_BASE_SEQUENCE, -1)
    store_be32(out + AT_COUNT, 1)
    p[0] = RECORD_BYTES * 2      # varints are zigzag
    p[4] = KEY_BYTES * 2
    store_be16(p + 7, COMMIT if commit else ABORT)
    p[9] = VALUE_BYTES * 2
    store_be32(p + 12, coordinator_epoch)
    store_be32(out + AT_CRC, <int32_t>crc32c(out + AT_ATTRIBUTES, MARKER_BYTES - <int>AT_ATTRIBUTES, 0))
