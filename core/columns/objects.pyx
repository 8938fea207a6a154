"""Records as Python objects, straight from fetched batches: for those who want each one, and not columns.

    batches = PartitionBatches(fetched, start_offset=40)
    records = read_records(batches, "topic", 0, 500, decompress)

An object holds its key and value as bytes, its numbers as they are in C, and its headers, if it has any, as a list.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t

from pybroker.core.base.cursor cimport OK, cursor_left, cursor_t
from pybroker.core.base.error_codes cimport INVALID_RECORD
from pybroker.core.batch.batch cimport LOG_APPEND_TIME
from pybroker.core.batch.record cimport record_headers, record_next, record_t, record_timestamp, span_t
from pybroker.core.columns.decode cimport run_t
from pybroker.core.columns.partition_batches cimport (
    BATCHES_END, BATCHES_PACKED, PartitionBatches, batches_advance, batches_next,
)


@cython.freelist(1024)
@cython.no_gc  # it refers to nothing that could refer back
cdef class Record:
    """One record that was read; equal to another with the same fields."""

    cdef readonly str topic
    cdef readonly object key
    cdef readonly object value
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef object _headers
    cdef readonly int32_t partition
    cdef readonly int8_t timestamp_type

    def __init__(
        self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp_ms, int8_t timestamp_type,
        bytes key, bytes value, headers=(),
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self._headers = list(headers) or None

    @property
    def headers(self) -> list:
        return [] if self._headers is None else self._headers

    cdef tuple fields(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp_ms, self.timestamp_type, self.key, self.value,
            self.headers,
        )

    def __reduce__(self):
        return Record, self.fields()

    def __eq__(self, other):
        return self.fields() == (<Record>other).fields() if type(other) is Record else NotImplemented

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, timestamp_type={self.timestamp_type}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


cdef inline object _bytes_or_none(const span_t* span):
    if span.size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>span.at, span.size)


cdef Record _record(const run_t* run, const record_t* record, str topic, int32_t partition):
    cdef Record made = Record.__new__(Record)
    made.topic = topic
    made.partition = partition
    made.offset = run.b.base_offset + record.offset_delta
    made.timestamp_ms = record_timestamp(&run.b, record)
    made.timestamp_type = run.b.attributes & LOG_APPEND_TIME != 0
    made.key = _bytes_or_none(&record.key)
    made.value = _bytes_or_none(&record.value)
    if record.header_count:
        made._headers = record_headers(record)
    return made


cdef int _read_run(PartitionBatches batches, str topic, int32_t partition, Py_ssize_t most, list found) except -2:
    """The records of the batch that is open, up to `most` in all; OK, or INVALID_RECORD."""
    cdef run_t* run = &batches.f.run
    cdef record_t record
    cdef cursor_t at
    while run.index < run.b.count and len(found) < most:
        at = run.r
        if record_next(&run.r, &record) != OK:
            return INVALID_RECORD
        if record.offset_delta <= run.last_delta or record.offset_delta > run.b.last_offset_delta:
            run.r = at
            return INVALID_RECORD
        if run.b.base_offset + record.offset_delta >= batches.f.end_offset:
            run.r = at
            break
        run.index += 1
        run.last_delta = record.offset_delta
        if run.b.base_offset + record.offset_delta >= batches.f.next_offset:
            found.append(_record(run, &record, topic, partition))
    if run.index == run.b.count and cursor_left(&run.r):
        return INVALID_RECORD
    return OK


cdef int _open(PartitionBatches batches, object decompress) except -2:
    """The next batch with wanted records, uncompressed, is open: OK, BATCHES_END, -ENOMEM or a Kafka code."""
    cdef int status = OK
    while not batches.f.running and status == OK:
        batches.let_go()
        with nogil:
            status = batches_next(&batches.f)
        if status == BATCHES_PACKED:
            status = OK
            batches.hold(batches.unpack(decompress))
    return status


def read_records(PartitionBatches batches not None, str topic not None, int32_t partition, Py_ssize_t most, decompress):
    """The partition's next records as objects, all that are left or `most`; `decompress` as of Columns.

    Raises LogError (2, 10, 43, 76, 87) with the batch's offset, once the records before were returned."""
    cdef list found = []
    cdef int status = OK
    if batches.map is not None:
        raise TypeError("records are read as objects from memory, and not from a map")
    if batches.busy:
        raise RuntimeError("a batches is read by one thread at a time")
    batches.busy = True
    try:
        while status == OK and len(found) < most:
            try:
                status = _open(batches, decompress)
            except Exception:
                if found:
                    return found  # the next call comes to it again
                raise
            if status == OK:
                status = _read_run(batches, topic, partition, most, found)
            if status == OK:
                batches_advance(&batches.f, len(found) == most)
            elif batches.f.running and batches.f.run.last_delta >= 0:  # what comes next is at fault, and will be again
                batches.f.next_offset = max(
                    batches.f.next_offset, batches.f.run.b.base_offset + batches.f.run.last_delta + 1)
    finally:
        batches.busy = False
    if status not in (OK, BATCHES_END) and not found:
        batches.refuse(status)
    return found
