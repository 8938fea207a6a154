"""The check of records against their batch's header, so that consumers can read what is stored.

Uncompressed records are walked in place, for every produced batch. The usual records (lengths of at most four bytes, no
headers, some bytes after them) are skipped without a call, in some twenty instructions. All others, including malformed
ones, take the careful path, `record_next`, which alone decides that a record is malformed.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from pybroker.core.base.cursor cimport OK, cursor_init, cursor_left, cursor_t, short_varint
from pybroker.core.batch.batch cimport (
    CODEC_NONE, batch_check, batch_codec, batch_payload, batch_payload_size, batch_refuse_record, batch_t,
)
from pybroker.core.batch.decompress cimport decompress, decompressor_give, decompressor_t, decompressor_take
from pybroker.core.batch.record cimport record_next, record_t

cdef enum:
    FIELDS_BYTES = 24  # length, attributes, deltas and a length: bytes that are read without a check of the end


cdef inline const uint8_t* _skip_bytes(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Skip a key or a value; NULL if the careful path must read it."""
    cdef int32_t length = 0
    at = short_varint(at, &length)
    if at == NULL or length < -1 or length > end - at:
        return NULL
    return at if length < 0 else at + length


cdef inline const uint8_t* _next(const uint8_t* at, const uint8_t* end, int32_t offset_delta) noexcept nogil:
    """Skip a usual record, of which FIELDS_BYTES can be read; NULL if the careful path must read it."""
    cdef int32_t length = 0, delta = 0
    at = short_varint(at, &length)
    if at == NULL or length < 0 or length > end - at - FIELDS_BYTES:
        return NULL
    end = at + length
    at = short_varint(at + 1, &delta)
    if at != NULL:
        at = short_varint(at, &delta)
    if at == NULL or delta != offset_delta:
        return NULL
    at = _skip_bytes(at, end)
    if at != NULL:
        at = _skip_bytes(at, end)
    if at == NULL or at + 1 != end or at[0] != 0:
        return NULL
    return end


cdef int64_t records_walk(const uint8_t* p, size_t n, const batch_t* b) noexcept nogil:
    cdef cursor_t r
    cdef record_t record
    cdef const uint8_t* after
    cdef int32_t i
    cursor_init(&r, p, n)
    for i in range(b.count):
        after = _next(r.at, r.end, i) if r.end - r.at >= FIELDS_BYTES else NULL
        if after != NULL:
            r.at = after
        elif record_next(&r, &record) != OK or record.offset_delta != i:
            return i
    return b.count if cursor_left(&r) else -1


cdef int batch_validate(const uint8_t* p, size_t n, int64_t size_max, bint client, batch_t* out) noexcept nogil:
    cdef int64_t fault
    cdef int status = batch_check(p, n, size_max, client, out)
    if status != OK or not client or batch_codec(out) != CODEC_NONE:
        return status
    fault = records_walk(batch_payload(out), <size_t>batch_payload_size(out), out)
    return OK if fault < 0 else batch_refuse_record(out, fault)


cdef int64_t batch_look_inside(const batch_t* b) noexcept nogil:
    cdef decompressor_t* d = decompressor_take()
    cdef int64_t made
    if d == NULL:
        return -1
    made = decompress(d, batch_codec(b), batch_payload(b), <size_t>batch_payload_size(b))
    if made >= 0 and records_walk(d.plain, <size_t>made, b) >= 0:
        made = -1
    decompressor_give(d)
    return made
