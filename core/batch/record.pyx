"""Records: walks for the broker's checks and for Python; the format is in record.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from pybroker.core.base.cursor cimport OK, cursor_init, cursor_left, cursor_t
from pybroker.core.base.error_codes cimport INVALID_RECORD
from pybroker.core.base.status cimport raise_status
from pybroker.core.batch.batch cimport LOG_APPEND_TIME, BatchHeader, batch_t


cdef int _note(record_faults_t* out, int64_t index, int reason, int64_t timestamp) noexcept nogil:
    """Note a faulty record."""
    cdef record_fault_t* fault
    if out.first == NULL:
        out.first = <record_fault_t*>malloc(FAULTS_MAX * sizeof(record_fault_t))
        if out.first == NULL:
            return -ENOMEM
    if out.count < FAULTS_MAX:
        fault = &out.first[out.count]
        fault.index, fault.reason, fault.timestamp = <int32_t>index, reason, timestamp
    out.count += 1
    return OK


cdef int records_check(
    const uint8_t* p, size_t n, const batch_t* b, bint need_keys, int64_t timestamp_min, int64_t timestamp_max,
    record_faults_t* out
) noexcept nogil:
    cdef cursor_t r
    cdef record_t record
    cdef int64_t timestamp = -1
    cdef int64_t last_delta = -1
    cdef int64_t i
    cdef int reason, status
    cdef bint own_times = not b.attributes & LOG_APPEND_TIME
    out.count = 0
    out.first = NULL
    cursor_init(&r, p, n)
    for i in range(b.count):
        reason = 0
        if (
            record_next(&r, &record) != OK
            or record.offset_delta <= last_delta
            or record.offset_delta > b.last_offset_delta
        ):
            out.count = 0
            return _note(out, i, RECORD_MALFORMED, -1)
        last_delta = record.offset_delta
        if own_times:
            timestamp = record_timestamp(b, &record)
        if need_keys and record.key.at == NULL:
            reason = RECORD_NO_KEY
        elif own_times and timestamp != -1 and not timestamp_min <= timestamp <= timestamp_max:
            reason = RECORD_TIMESTAMP
        if reason:
            status = _note(out, i, reason, timestamp)
            if status != OK:
                return status
    if cursor_left(&r):
        out.count = 0
        return _note(out, b.count, RECORD_MALFORMED, -1)
    return OK


def check_records(
    payload, BatchHeader header not None, *, bint need_keys, int64_t timestamp_min, int64_t timestamp_max
):
    """Check records without building objects. Return the number of faulty ones, and the first 10,000 of them as
    (index, reason, timestamp), with reason 1 malformed, 2 key missing, 3 timestamp not in [min, max]."""
    cdef Py_buffer view
    cdef record_faults_t faults
    cdef int status
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            status = records_check(
                <const uint8_t*>view.buf, <size_t>view.len, &header.b, need_keys, timestamp_min, timestamp_max, &faults
            )
        if status != OK:
            raise MemoryError()
        return faults.count, [
            (faults.first[i].index, faults.first[i].reason, faults.first[i].timestamp)
            for i in range(min(faults.count, <int64_t>FAULTS_MAX))
        ]
    finally:
        free(faults.first)
        PyBuffer_Release(&view)


# -- records as Python objects ----------------------------------------------------------------------------------------
# Header keys that are not UTF-8 survive a round trip, as both directions use surrogateescape.

cdef object _bytes_or_none(const span_t* span):
    if span.at == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>span.at, span.size)


cdef list record_headers(const record_t* record):
    cdef list headers = []
    cdef cursor_t r = record.headers
    cdef span_t key, value
    for _ in range(record.header_count):
        if header_next(&r, &key, &value) == OK:  # record_next has checked it, but a bytearray may have changed since
            name = PyUnicode_DecodeUTF8(<char*>key.at, key.size, b"surrogateescape")
            headers.append((name, _bytes_or_none(&value)))
    return headers


cdef class _Records:
    """The iterator of walk_records; it holds the buffer until it is freed."""

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
        if self.index < self.b.count and record_next(&self.r, &record) == OK:
            self.index += 1
            return (
                self.b.base_offset + record.offset_delta,
                record_timestamp(&self.b, &record),
                _bytes_or_none(&record.key),
                _bytes_or_none(&record.value),
                record_headers(&record) if record.header_count else [],
            )
        if self.index == self.b.count and not cursor_left(&self.r):
            raise StopIteration
        raise_status(
            INVALID_RECORD, f"record {self.index} of {self.b.count}: the last {cursor_left(&self.r)} bytes do not parse"
        )


def walk_records(payload, header):
    """Iterate over the records of an uncompressed payload (the bytes after the header). Raises
    LogError(INVALID_RECORD)."""
    return _Records(payload, header)
