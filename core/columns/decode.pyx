"""The loop from records to columns: one pass, bounds checked, no allocation within a batch.

Before a batch the blocks get room for the most that it can add, so the loop only stores. Typical records (short
lengths, no headers, bytes following) take a path without a call. All others, malformed ones too, take the careful path,
`record_next`, which alone decides what is malformed.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from pybroker.core.base.cursor cimport OK, SHORT, cursor_left, cursor_t, short_varint
from pybroker.core.base.error_codes cimport CORRUPT_MESSAGE, INVALID_RECORD
from pybroker.core.batch.batch cimport LOG_APPEND_TIME, batch_check, batch_t
from pybroker.core.batch.block cimport block_free, block_room, block_t, copy
from pybroker.core.batch.record cimport header_next, record_next, record_t, span_t

cdef enum:
    RECORD_BYTES_MIN = 7  # length, attributes, timestamp delta, offset delta, two null lengths, no headers
    AHEAD_BYTES = 1024  # prefetched into the cache, as a map's pages have not been read before
    LINE_BYTES = 64
    FAST_BYTES = 32  # with so many bytes left, four short varints and an attribute are read without bounds checks

cdef enum:  # a separate enum: gcc 14 makes an enum with such a value unsigned
    FARTHEST_MS = 9223372036854775  # the most milliseconds whose microseconds fit an int64

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void* p) noexcept nogil

cdef struct out_t:
    # The position of a batch's rows: the ends of the columns; for bytes only of requested ones.
    int64_t* offset
    int64_t* timestamp
    int64_t rows
    int64_t headers
    int64_t key_bytes
    int64_t value_bytes


# -- room -------------------------------------------------------------------------------------------------------------

cdef void columns_init(columns_t* c) noexcept nogil:
    memset(c, 0, sizeof(columns_t))
    c.timestamp_scale = 1


cdef void columns_free(columns_t* c) noexcept nogil:
    cdef block_t* plain[4]
    cdef binary_t* columns[4]
    cdef int i
    plain[0], plain[1], plain[2], plain[3] = &c.offset, &c.timestamp, &c.timestamp_type, &c.header_offsets
    columns[0], columns[1], columns[2], columns[3] = &c.key, &c.value, &c.header_key, &c.header_value
    for i in range(4):
        block_free(plain[i])
        block_free(&columns[i].offsets)
        block_free(&columns[i].data)
        block_free(&columns[i].validity)


cdef int _list_room(block_t* offsets, int64_t rows, int64_t more) noexcept nogil:
    """Make room for so many more i32 offsets; the first one, 0, is always there."""
    cdef int status = block_room(offsets, (rows + 1 + more) * 4 - offsets.size)
    if status == 0 and offsets.size == 0:
        memset(offsets.data, 0, 4)
        offsets.size = 4
    return status


cdef int _binary_room(binary_t* column, int64_t rows, int64_t more, int64_t n) noexcept nogil:
    """Make room for `more` rows of n bytes together, all of them valid until set null."""
    cdef int64_t bits = (rows + more + 7) // 8
    cdef int status = _list_room(&column.offsets, rows, more)
    if status == 0:
        status = block_room(&column.data, n)
    if status == 0:
        status = block_room(&column.validity, bits - column.validity.size)
    if status != 0:
        return status
    if rows & 7 and column.validity.size:
        column.validity.data[rows >> 3] |= <uint8_t>(0xFF << (rows & 7))  # a malformed batch may have cleared bits here
    if bits > (rows + 7) // 8:
        memset(column.validity.data + (rows + 7) // 8, 0xFF, <size_t>(bits - (rows + 7) // 8))
    return 0


cdef int _room(columns_t* c, int64_t rows, int64_t n) noexcept nogil:
    """Make room for the most that a batch of `rows` records in n bytes can add."""
    cdef int status = 0
    if c.wants & WANT_OFFSET:
        status = block_room(&c.offset, rows * 8)
    if status == 0 and c.wants & WANT_TIMESTAMP:
        status = block_room(&c.timestamp, rows * 8)
    if status == 0 and c.wants & WANT_TIMESTAMP_TYPE:
        status = block_room(&c.timestamp_type, rows)
    if status == 0 and c.wants & WANT_KEY:
        status = _binary_room(&c.key, c.rows, rows, n)
    if status == 0 and c.wants & WANT_VALUE:
        status = _binary_room(&c.value, c.rows, rows, n)
    if status == 0 and c.wants & WANT_HEADERS:
        status = _list_room(&c.header_offsets, c.rows, rows)
        if status == 0:
            status = _binary_room(&c.header_key, c.headers, 0, n)
        if status == 0:
            status = _binary_room(&c.header_value, c.headers, 0, n)
    return status


cdef int columns_seal(columns_t* c) noexcept nogil:
    return _room(c, 0, 0)


cdef bint _fits(const columns_t* c, int64_t n) noexcept nogil:
    """True if n more bytes of records fit in any column: offsets stay below 2^31."""
    return (
        c.key.data.size <= INT32_MAX - n
        and c.value.data.size <= INT32_MAX - n
        and c.header_key.data.size <= INT32_MAX - n
        and c.header_value.data.size <= INT32_MAX - n
        and c.headers <= INT32_MAX - n
    )


# -- rows -------------------------------------------------------------------------------------------------------------

cdef inline int64_t _put(
    binary_t* column, int64_t row, int64_t end, const uint8_t* p, int64_t n, int64_t room) noexcept nogil:
    """Store one field of n bytes (-1: null) as row `row` after `end` bytes; return the new end of the data."""
    if n > 0:
        copy(column.data.data + end, p, n, room)
        end += n
    elif n < 0:
        column.validity.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
        column.nulls += 1
    (<int32_t*>column.offsets.data)[row + 1] = <int32_t>end
    return end


cdef int _put_header(columns_t* c, const span_t* key, const span_t* value) noexcept nogil:
    """Store one header; its bytes have room, but its entry in the lists may not."""
    cdef int status = _binary_room(&c.header_key, c.headers, 1, 0)
    if status == 0:
        status = _binary_room(&c.header_value, c.headers, 1, 0)
    if status != 0:
        return status
    c.header_key.data.size = _put(&c.header_key, c.headers, c.header_key.data.size, key.at, key.size, 0)
    c.header_value.data.size = _put(&c.header_value, c.headers, c.header_value.data.size, value.at, value.size, 0)
    c.headers += 1
    c.header_key.offsets.size = c.header_value.offsets.size = (c.headers + 1) * 4
    c.header_key.validity.size = c.header_value.validity.size = (c.headers + 7) // 8
    return 0


cdef int _put_headers(columns_t* c, const record_t* record) noexcept nogil:
    cdef cursor_t r = record.headers
    cdef span_t key, value
    cdef int32_t _
    cdef int status = OK
    for _ in range(record.header_count):
        status = header_next(&r, &key, &value)
        if status == OK:
            status = _put_header(c, &key, &value)
        if status != OK:
            return status
    return OK


cdef inline bint _read_fast(cursor_t* r, record_t* out) noexcept nogil:
    """Read a record as record_next does if it is a typical one; else False, and nothing has moved."""
    cdef const uint8_t* p = r.at
    cdef const uint8_t* fast_end = r.end - FAST_BYTES
    cdef const uint8_t* end
    cdef int32_t length, delta
    if r.end - p < FAST_BYTES:
        return False
    p = short_varint(p, &length)
    if p == NULL or length < 1 or length > r.end - p:
        return False
    end = p + length
    p = short_varint(p + 1, &delta)
    if p == NULL:
        return False
    out.timestamp_delta = delta
    p = short_varint(p, &out.offset_delta)
    if p == NULL:
        return False
    p = short_varint(p, &out.key.size)
    if p == NULL or out.key.size < -1 or out.key.size > end - p:
        return False
    out.key.at = p
    if out.key.size > 0:
        p += out.key.size
    if p > fast_end:
        return False
    p = short_varint(p, &out.value.size)
    if p == NULL or out.value.size < -1 or out.value.size >= end - p:
        return False
    out.value.at = p
    if out.value.size > 0:
        p += out.value.size
    if p + 1 != end or p[0] != 0:
        return False
    out.header_count = 0
    r.at = end
    return True


cdef inline int64_t _scaled(int64_t timestamp_ms, int64_t scale) noexcept nogil:
    """Convert to the column's unit. Clients may send any value: one out of range for microseconds is clamped."""
    if scale == 1:
        return timestamp_ms
    return min(max(timestamp_ms, -<int64_t>FARTHEST_MS), <int64_t>FARTHEST_MS) * scale


cdef int _rows(columns_t* c, run_t* run, out_t* out, int64_t start, int64_t end, int64_t most) noexcept nogil:
    """The loop; it moves `out` and `run`, and changes no sizes in `c` but those of headers."""
    cdef record_t record
    cdef cursor_t r = run.r
    cdef const uint8_t* at
    cdef int64_t index = run.index, last_delta = run.last_delta, offset, row = out.rows
    cdef int64_t base = run.b.base_offset, delta_max = run.b.last_offset_delta, count = run.b.count
    cdef int64_t key_end = out.key_bytes, value_end = out.value_bytes, row_end = row + most
    cdef uint64_t base_timestamp = <uint64_t>run.b.base_timestamp
    cdef int64_t scale = c.timestamp_scale
    cdef int32_t wants = c.wants
    cdef int status = OK
    record.headers = r  # valid until record_next sets it: no header is read before
    while index < count and row < row_end:
        at = r.at
        prefetch(at + AHEAD_BYTES)
        prefetch(at + AHEAD_BYTES + LINE_BYTES)
        if not _read_fast(&r, &record) and record_next(&r, &record) != OK:
            status = INVALID_RECORD
            break
        if record.offset_delta <= last_delta or record.offset_delta > delta_max:
            status = INVALID_RECORD
            break
        offset = base + record.offset_delta
        if offset >= end:
            r.at = at
            break
        index += 1
        last_delta = record.offset_delta
        if offset < start:
            continue
        if wants & WANT_OFFSET:
            out.offset[row] = offset
        if wants & WANT_TIMESTAMP:
            out.timestamp[row] = _scaled(<int64_t>(base_timestamp + <uint64_t>record.timestamp_delta), scale)
        if wants & WANT_KEY:
            key_end = _put(&c.key, row, key_end, record.key.at, record.key.size, r.end - record.key.at)
        if wants & WANT_VALUE:
            value_end = _put(&c.value, row, value_end, record.value.at, record.value.size, r.end - record.value.at)
        if wants & WANT_HEADERS:
            if record.header_count:
                status = _put_headers(c, &record)
                if status != OK:
                    break
            (<int32_t*>c.header_offsets.data)[row + 1] = <int32_t>c.headers
        row += 1
    run.r = r
    run.index = index
    run.last_delta = last_delta
    out.rows = row
    out.key_bytes = key_end
    out.value_bytes = value_end
    return status


# -- one batch --------------------------------------------------------------------------------------------------------

cdef void _same_timestamp(columns_t* c, const batch_t* b, int64_t rows) noexcept nogil:
    """Store what is the same for the whole batch: the timestamp type and, with LogAppendTime, the timestamp."""
    cdef int64_t* timestamp = <int64_t*>c.timestamp.data + c.rows
    cdef bint log_append = b.attributes & LOG_APPEND_TIME != 0
    cdef int64_t i
    if c.wants & WANT_TIMESTAMP_TYPE:
        memset(c.timestamp_type.data + c.rows, log_append, <size_t>rows)
    if c.wants & WANT_TIMESTAMP and log_append:
        for i in range(rows):
            timestamp[i] = _scaled(b.max_timestamp, c.timestamp_scale)


cdef void _publish(columns_t* c, const out_t* out) noexcept nogil:
    _resize(c, out.rows, out.key_bytes, out.value_bytes)


cdef void _resize(columns_t* c, int64_t rows, int64_t key_bytes, int64_t value_bytes) noexcept nogil:
    """Set the number of rows, and the bytes of their keys and values."""
    c.rows = rows
    if c.wants & WANT_OFFSET:
        c.offset.size = c.rows * 8
    if c.wants & WANT_TIMESTAMP:
        c.timestamp.size = c.rows * 8
    if c.wants & WANT_TIMESTAMP_TYPE:
        c.timestamp_type.size = c.rows
    if c.wants & WANT_KEY:
        c.key.data.size = key_bytes
        c.key.offsets.size = (c.rows + 1) * 4
        c.key.validity.size = (c.rows + 7) // 8
    if c.wants & WANT_VALUE:
        c.value.data.size = value_bytes
        c.value.offsets.size = (c.rows + 1) * 4
        c.value.validity.size = (c.rows + 7) // 8
    if c.wants & WANT_HEADERS:
        c.header_offsets.size = (c.rows + 1) * 4


cdef void _undo(columns_t* c, const columns_t* before) noexcept nogil:
    """Remove the rows of a malformed batch: restore sizes and counts."""
    c.key.nulls = before.key.nulls
    c.value.nulls = before.value.nulls
    c.headers = before.headers
    c.header_key.nulls = before.header_key.nulls
    c.header_value.nulls = before.header_value.nulls
    c.header_key.data.size = before.header_key.data.size
    c.header_value.data.size = before.header_value.data.size
    c.header_key.offsets.size = c.header_value.offsets.size = (c.headers + 1) * 4
    c.header_key.validity.size = c.header_value.validity.size = (c.headers + 7) // 8


cdef int _checked(run_t* run, int status) noexcept nogil:
    """Return the final status of a run: the result of the CRC check if it is still to be made, else `status`. Checking
    after reading the records lets the cache load the batch while there is other work."""
    cdef batch_t now
    cdef int sound
    if run.raw == NULL:
        return status
    sound = batch_check(run.raw, <size_t>run.b.size, 0, False, &now)
    run.raw = NULL
    if sound == OK:
        return status
    run.b = now
    return CORRUPT_MESSAGE if sound == SHORT else sound


cdef int decode_records(columns_t* c, run_t* run, int64_t start, int64_t end, int64_t most) noexcept nogil:
    cdef columns_t before
    cdef out_t out
    cdef int64_t n = <int64_t>cursor_left(&run.r), rows = min(<int64_t>run.b.count - run.index, most)
    cdef int status
    if (run.b.count - run.index) * RECORD_BYTES_MIN > n:
        return _checked(run, INVALID_RECORD)
    if not _fits(c, n):
        return DECODE_FULL
    status = _room(c, rows, n)
    if status != 0:
        return status
    before = c[0]
    out.rows = c.rows
    out.offset = <int64_t*>c.offset.data
    out.timestamp = <int64_t*>c.timestamp.data
    out.key_bytes = c.key.data.size
    out.value_bytes = c.value.data.size
    status = _rows(c, run, &out, start, end, rows)
    if status == OK and run.index == run.b.count and cursor_left(&run.r):
        status = INVALID_RECORD
    status = _checked(run, status)
    if status != OK:
        _undo(c, &before)
        return status
    _same_timestamp(c, &run.b, out.rows - c.rows)
    _publish(c, &out)
    return OK


cdef void columns_forget(columns_t* c, const columns_t* before) noexcept nogil:
    if c.rows == before.rows:
        return
    _undo(c, before)
    _resize(c, before.rows, before.key.data.size, before.value.data.size)
