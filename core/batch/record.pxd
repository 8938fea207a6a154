"""The uncompressed records inside a batch, walked in place without copying.

    length varint              bytes after this field
    attributes i8              0; ignored
    timestamp_delta varlong    to the batch's base_timestamp
    offset_delta varint        to its base_offset; rises from record to record, by 1 unless compaction removed records
    key_length varint, key     -1: null
    value_length varint, value -1: null
    header_count varint, headers {key_length varint, key (utf-8, never null), value_length varint (-1: null), value}

All varints are zigzag. A record is sound if its fields end exactly where its length says.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t

from pybroker.core.base.cursor cimport BAD, OK, cursor_t, read_i8, read_span, read_varint, read_varlong
from pybroker.core.batch.batch cimport LOG_APPEND_TIME, batch_t

cdef enum:
    NULL_LENGTH = -1

cdef struct span_t:
    const uint8_t* at  # NULL: null
    int32_t size  # NULL_LENGTH: null

cdef struct record_t:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t header_count
    span_t key
    span_t value
    cursor_t headers  # header_count sound headers


cdef inline int read_nullable(cursor_t* r, span_t* out) noexcept nogil:
    """Read a varint length and that many bytes."""
    cdef int status = read_varint(r, &out.size)
    if status != OK:
        return status
    if out.size == NULL_LENGTH:
        out.at = NULL
        return OK
    return read_span(r, out.size, &out.at)


cdef inline int header_next(cursor_t* r, span_t* key, span_t* value) noexcept nogil:
    """Read the next header of a record; its key is never null."""
    cdef int status = read_nullable(r, key)
    if status != OK:
        return status
    if key.at == NULL:
        return BAD
    return read_nullable(r, value)


cdef inline int _headers_walk(cursor_t* r, int32_t count) noexcept nogil:
    # Each header takes at least two bytes, so the cursor's end limits the loop, not the count.
    cdef span_t key, value
    cdef int status
    while count > 0:
        status = header_next(r, &key, &value)
        if status != OK:
            return status
        count -= 1
    return OK if count == 0 else BAD


cdef inline int _record_read(cursor_t* r, record_t* out) noexcept nogil:
    cdef int8_t attributes
    cdef int status = read_i8(r, &attributes)
    if status == OK:
        status = read_varlong(r, &out.timestamp_delta)
    if status == OK:
        status = read_varint(r, &out.offset_delta)
    if status == OK:
        status = read_nullable(r, &out.key)
    if status == OK:
        status = read_nullable(r, &out.value)
    if status == OK:
        status = read_varint(r, &out.header_count)
    out.headers = r[0]
    if status == OK:
        status = _headers_walk(r, out.header_count)
    return status


cdef inline int record_next(cursor_t* r, record_t* out) noexcept nogil:
    """Read the next record, with borrowed spans; OK, SHORT or BAD. The cursor moves past it if OK."""
    cdef cursor_t body
    cdef const uint8_t* at = r.at
    cdef int32_t length
    cdef int status = read_varint(r, &length)
    if status == OK:
        status = read_span(r, length, &body.at)
    if status == OK:
        body.end = r.at
        status = _record_read(&body, out)
        if status == OK and body.at != body.end:
            status = BAD
    if status != OK:
        r.at = at
    return status


cdef inline int64_t record_timestamp(const batch_t* b, const record_t* record) noexcept nogil:
    """The record's timestamp; with LogAppendTime the batch's. A delta that overflows wraps, as in Java."""
    if b.attributes & LOG_APPEND_TIME:
        return b.max_timestamp
    return <int64_t>(<uint64_t>b.base_timestamp + <uint64_t>record.timestamp_delta)


# The faults of a record; 0 is none.
cdef enum:
    RECORD_MALFORMED = 1
    RECORD_NO_KEY = 2
    RECORD_TIMESTAMP = 3

cdef enum:
    FAULTS_MAX = 10000  # the most faulty records in an answer; further ones are only counted

cdef struct record_fault_t:
    int32_t index
    int32_t reason
    int64_t timestamp

cdef struct record_faults_t:
    int64_t count
    record_fault_t* first  # at most FAULTS_MAX of them; the caller frees it

# Walk the n bytes of the uncompressed records of b and note the faulty ones. A malformed record ends the walk, and is
# then the only one noted. An offset delta that does not rise or exceeds the batch's is malformed, too, and so are bytes
# after the last record (at index b.count). Timestamps must be in [timestamp_min, timestamp_max]; -1 (none) always
# passes, and all pass with LogAppendTime. OK or -ENOMEM.
cdef int records_check(
    const uint8_t* p, size_t n, const batch_t* b, bint need_keys, int64_t timestamp_min, int64_t timestamp_max,
    record_faults_t* out
) noexcept nogil

# The headers of a record as (key, value) pairs, for Python.
cdef list record_headers(const record_t* record)
