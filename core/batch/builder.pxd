"""A batch being built: room for its header, and the records added so far; formats in batch.pxd, record.pxd."""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pybroker.core.base.error_codes cimport MESSAGE_TOO_LARGE
from pybroker.core.batch.batch cimport HEADER_BYTES
from pybroker.core.batch.block cimport Block, block_init, block_room, block_t
from pybroker.core.batch.record cimport NULL_LENGTH

cdef extern from *:
    """
    static inline uint64_t pyb_zigzag(int64_t x) { return (uint64_t)x << 1 ^ (uint64_t)(x >> 63); }
    /* Seven bits a byte: by the highest bit that is set, without a loop. */
    static inline int pyb_zigzag_size(int64_t x) { return (70 - __builtin_clzll(pyb_zigzag(x) | 1)) / 7; }
    static inline uint8_t *pyb_put_zigzag(uint8_t *p, int64_t x) {
        uint64_t v = pyb_zigzag(x);
        for (; v >= 0x80; v >>= 7) *p++ = (uint8_t)(v | 0x80);
        *p++ = (uint8_t)v;
        return p;
    }
    """
    int zigzag_size "pyb_zigzag_size" (int64_t x) noexcept nogil
    uint8_t* put_zigzag "pyb_put_zigzag" (uint8_t* p, int64_t x) noexcept nogil

cdef struct builder_t:
    block_t block  # HEADER_BYTES, filled in at the end, then the records
    int64_t base_timestamp  # the first record's
    int64_t max_timestamp
    int32_t count

cdef struct new_record_t:
    # A record to add.
    int64_t timestamp
    const uint8_t* key
    int64_t key_size  # NULL_LENGTH: null
    const uint8_t* value
    int64_t value_size
    int64_t header_count
    int64_t header_bytes  # the size of the headers, which the caller writes


cdef inline void builder_init(builder_t* b, int64_t bytes_hint) noexcept nogil:
    block_init(&b.block, bytes_hint)
    b.base_timestamp = 0
    b.max_timestamp = 0
    b.count = 0


cdef inline int64_t field_bytes(int64_t size) noexcept nogil:
    """The encoded size of a key, a value or a part of a header, including its length field."""
    return zigzag_size(size) + (size if size > 0 else 0)


cdef inline uint8_t* put_field(uint8_t* p, const uint8_t* data, int64_t size) noexcept nogil:
    p = put_zigzag(p, size)
    if size > 0:
        memcpy(p, data, <size_t>size)
        p += size
    return p


cdef inline int64_t entry_body(const builder_t* b, const new_record_t* e) noexcept nogil:
    """The size of the record after its length field, if it is added next."""
    cdef int64_t delta = 0 if b.count == 0 else <int64_t>(<uint64_t>e.timestamp - <uint64_t>b.base_timestamp)
    return (
        1 + zigzag_size(delta) + zigzag_size(b.count) + field_bytes(e.key_size) + field_bytes(e.value_size)
        + zigzag_size(e.header_count) + e.header_bytes
    )


cdef inline int64_t builder_size(const builder_t* b) noexcept nogil:
    """The uncompressed size of the batch so far."""
    return b.block.size if b.count else HEADER_BYTES


cdef inline int builder_add(builder_t* b, const new_record_t* e, int64_t body, uint8_t** headers) noexcept nogil:
    """Add a record of `body` bytes (see entry_body). The caller writes its headers at `headers`.

    0, -ENOMEM or MESSAGE_TOO_LARGE."""
    cdef int64_t total = zigzag_size(body) + body
    cdef uint8_t* p
    if b.count == 0:
        b.block.size = HEADER_BYTES
        b.base_timestamp = b.max_timestamp = e.timestamp
        if block_room(&b.block, 0) != 0:
            return -ENOMEM
    if total > INT32_MAX - b.block.size or b.count == INT32_MAX:
        return MESSAGE_TOO_LARGE
    if block_room(&b.block, total) != 0:
        return -ENOMEM
    p = put_zigzag(b.block.data + b.block.size, body)
    p[0] = 0
    p = put_zigzag(p + 1, <int64_t>(<uint64_t>e.timestamp - <uint64_t>b.base_timestamp))
    p = put_zigzag(p, b.count)
    p = put_field(p, e.key, e.key_size)
    p = put_field(p, e.value, e.value_size)
    headers[0] = put_zigzag(p, e.header_count)
    b.block.size += total
    b.count += 1
    if e.timestamp > b.max_timestamp:
        b.max_timestamp = e.timestamp
    return 0


cdef inline void builder_undo(builder_t* b, int64_t body) noexcept nogil:
    """Remove the record that was added last."""
    b.block.size -= zigzag_size(body) + body
    b.count -= 1


cdef class SealedBatch(Block):
    cdef readonly object tag
    cdef readonly int32_t count
    cdef uint32_t records_crc

# Finish the batch for Python; the builder is empty then. Raises LogError(MESSAGE_TOO_LARGE), MemoryError, and as
# `compress`.
cdef SealedBatch builder_seal(builder_t* b, int16_t attributes, object compress, object tag)
