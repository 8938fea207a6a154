"""Records: walked for the broker's checks and for Python, and built into batches; the format stands in record.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t

from pybroker.core.batch cimport (
    AT_ATTRIBUTES,
    AT_BASE_OFFSET,
    AT_BASE_SEQUENCE,
    AT_BASE_TIMESTAMP,
    AT_COUNT,
    AT_LAST_OFFSET_DELTA,
    AT_LEADER_EPOCH,
    AT_MAGIC,
    AT_MAX_TIMESTAMP,
    AT_PRODUCER_EPOCH,
    AT_PRODUCER_ID,
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    batch_from,
    batch_t,
)
from pybroker.core.cursor cimport (
    OK,
    cursor_init,
    cursor_left,
    cursor_t,
    store_be16,
    store_be32,
    store_be64,
    varlong_size,
    write_i8,
    write_span,
    write_varlong,
    writer_init,
    writer_t,
)
from pybroker.core.kafka cimport INVALID_RECORD, MESSAGE_TOO_LARGE
from pybroker.core.status cimport raise_status


cdef int64_t records_check(
    const uint8_t* p, size_t n, const batch_t* b, bint need_keys, int64_t timestamp_min, int64_t timestamp_max
) noexcept nogil:
    cdef cursor_t r
    cdef record_t record
    cdef int64_t timestamp
    cdef int64_t last_delta = -1
    cdef int64_t i
    cdef int reason = 0
    cdef bint own_times = not b.attributes & LOG_APPEND_TIME
    cursor_init(&r, p, n)
    for i in range(b.count):
        if record_walk(&r, &record) != OK:
            reason = RECORD_MALFORMED
        elif record.offset_delta <= last_delta or record.offset_delta > b.last_offset_delta:
            reason = RECORD_MALFORMED
        elif need_keys and record.key.at == NULL:
            reason = RECORD_NO_KEY
        elif own_times:
            timestamp = record_timestamp(b, &record)
            if timestamp != -1 and not timestamp_min <= timestamp <= timestamp_max:
                reason = RECORD_TIMESTAMP
        if reason:
            return i << REASON_BITS | reason
        last_delta = record.offset_delta
    if cursor_left(&r):
        return <int64_t>b.count << REASON_BITS | RECORD_MALFORMED
    return -1


def check_records(
    payload, BatchHeader header not None, *, bint need_keys, int64_t timestamp_min, int64_t timestamp_max
):
    """Walk without building objects: -1 if all is well, else the index of the first record at fault as
    (index << 2 | reason), reason 1 malformed, 2 key missing, 3 timestamp out of [min, max]."""
    cdef Py_buffer view
    cdef int64_t fault
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    with nogil:
        fault = records_check(
            <const uint8_t*>view.buf, <size_t>view.len, &header.b, need_keys, timestamp_min, timestamp_max
        )
    PyBuffer_Release(&view)
    return fault


# -- records as Python objects ----------------------------------------------------------------------------------------
# Header keys that are not utf-8 (they come from outside) survive a round trip: surrogateescape here and there.

cdef object _bytes_or_none(const span_t* span):
    if span.at == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>span.at, span.size)


cdef list _headers(const record_t* record):
    cdef list headers = []
    cdef cursor_t r = record.headers
    cdef span_t key, value
    for _ in range(record.header_count):
        if header_next(&r, &key, &value) == OK:  # record_walk saw to it, but a bytearray may have changed since
            name = PyUnicode_DecodeUTF8(<char*>key.at, key.size, b"surrogateescape")
            headers.append((name, _bytes_or_none(&value)))
    return headers


cdef class _Records:
    """The iterator of walk_records; it holds the buffer until it goes."""

    cdef Py_buffer view
    cdef cursor_t r
    cdef batch_t b
    cdef int64_t index

    def __cinit__(self, payload, BatchHeader header not None):
        PyObject_GetBuffer(payload, &self.view, PyBUF_SIMPLE)
        cursor_init(&self.r, <const uint8_t*>self.view.buf, <size_t>self.view.len)
        self.b = header.b
        self.index = 0

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def __iter__(self):
        return self

    def __next__(self):
        cdef record_t record
        if self.index < self.b.count and record_walk(&self.r, &record) == OK:
            self.index += 1
            return (
                self.b.base_offset + record.offset_delta,
                record_timestamp(&self.b, &record),
                _bytes_or_none(&record.key),
                _bytes_or_none(&record.value),
                _headers(&record) if record.header_count else [],
            )
        if self.index == self.b.count and not cursor_left(&self.r):
            raise StopIteration
        raise_status(
            INVALID_RECORD, f"record {self.index} of {self.b.count}: the last {cursor_left(&self.r)} bytes do not parse"
        )


def walk_records(payload, header):
    """The records of an uncompressed payload (bytes after the header). Raises LogError(87) where they do not parse."""
    return _Records(payload, header)


# -- building ---------------------------------------------------------------------------------------------------------

cdef int64_t _nullable_size(object data) except -1:
    cdef Py_ssize_t size
    if data is None:
        return 1
    size = PyBytes_GET_SIZE(data)
    return varlong_size(size) + size


cdef int64_t _body_size(int64_t timestamp_delta, int64_t offset_delta, bytes key, bytes value, list headers) except -1:
    cdef int64_t size = 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta)
    cdef bytes name, content
    size += _nullable_size(key) + _nullable_size(value) + varlong_size(len(headers))
    for name, content in headers:
        size += _nullable_size(name) + _nullable_size(content)
    return size


cdef void _write_nullable(writer_t* w, object data) noexcept:
    if data is None:
        write_varlong(w, NULL_LENGTH)
        return
    write_varlong(w, PyBytes_GET_SIZE(data))
    write_span(w, <const uint8_t*>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))


cdef list _normal(object headers):
    """Headers as (utf-8 key, value) pairs of bytes."""
    return [((<str?>name).encode("utf-8", "surrogateescape"), value) for name, value in headers]


cdef bytes _payload(object records, int64_t base_timestamp):
    """The records section: measured first, so that it is written once and in place."""
    cdef list normal = []
    cdef writer_t w
    cdef bytes key, value, payload
    cdef list headers
    cdef int64_t size, total = 0, offset_delta = 0, timestamp_delta
    for timestamp, key, value, given in records:
        headers = _normal(given) if given else []
        timestamp_delta = timestamp - base_timestamp
        size = _body_size(timestamp_delta, offset_delta, key, value, headers)
        total += varlong_size(size) + size
        if total > INT32_MAX - HEADER_BYTES:
            raise_status(MESSAGE_TOO_LARGE, f"a batch cannot hold {total} bytes of records")
        normal.append((size, timestamp_delta, key, value, headers))
        offset_delta += 1
    payload = PyBytes_FromStringAndSize(NULL, total)
    writer_init(&w, <uint8_t*>PyBytes_AS_STRING(payload), <size_t>total)
    offset_delta = 0
    for size, timestamp_delta, key, value, headers in normal:
        write_varlong(&w, size)
        write_i8(&w, 0)
        write_varlong(&w, timestamp_delta)
        write_varlong(&w, offset_delta)
        _write_nullable(&w, key)
        _write_nullable(&w, value)
        write_varlong(&w, len(headers))
        for name, content in headers:
            _write_nullable(&w, name)
            _write_nullable(&w, content)
        offset_delta += 1
    assert w.at == w.end
    return payload


def build_batch(
    records,
    *,
    int64_t base_offset=0,
    int16_t attributes=0,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
    int32_t partition_leader_epoch=-1,
    compress=None,
):
    """One batch of (timestamp_ms, key, value, headers); `attributes` names the codec that `compress` applies.

    The first record's timestamp is the base. Raises LogError 10 past 2 GiB, ValueError without records."""
    cdef uint8_t[HEADER_BYTES] header
    cdef bytes payload
    cdef int64_t base_timestamp
    if not records:
        raise ValueError("a batch has at least one record")
    if bool(attributes & CODEC_MASK) != (compress is not None):
        raise ValueError(f"codec {attributes & CODEC_MASK} with compress={compress!r}: one needs the other")
    base_timestamp = records[0][0]
    payload = _payload(records, base_timestamp)
    if compress is not None:
        payload = compress(payload)
    store_be64(header + AT_BASE_OFFSET, base_offset)
    store_be32(header + AT_LEADER_EPOCH, partition_leader_epoch)
    header[AT_MAGIC] = MAGIC
    store_be16(header + AT_ATTRIBUTES, attributes)
    store_be32(header + AT_LAST_OFFSET_DELTA, <int32_t>(len(records) - 1))
    store_be64(header + AT_BASE_TIMESTAMP, base_timestamp)
    store_be64(header + AT_MAX_TIMESTAMP, max([record[0] for record in records]))
    store_be64(header + AT_PRODUCER_ID, producer_id)
    store_be16(header + AT_PRODUCER_EPOCH, producer_epoch)
    store_be32(header + AT_BASE_SEQUENCE, base_sequence)
    store_be32(header + AT_COUNT, <int32_t>len(records))
    return batch_from(header, <const uint8_t*>PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload))
