"""Records as Python objects, straight from fetched batches, where single records and not columns are needed.

    batches = PartitionBatches(fetched, start_offset=40)
    records = read_records(batches, "topic", 0, 500, decompress)
    for record in RecordSteps(batches, "topic", 0, decompress, 0.1): ...

An object has its key and value as bytes, its numbers as C integers, and its headers, if any, as a list.
A program may replace key and value by what it deserializes them to.
"""

from types import GenericAlias

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t
from posix.time cimport clock_gettime, timespec

from pybroker.core.base.cursor cimport OK, cursor_left, cursor_t
from pybroker.core.base.error_codes cimport INVALID_RECORD
from pybroker.core.batch.batch cimport LOG_APPEND_TIME
from pybroker.core.batch.record cimport record_headers, record_next, record_t, record_timestamp, span_t
from pybroker.core.columns.decode cimport run_t
from pybroker.core.columns.partition_batches cimport (
    BATCHES_END, BATCHES_PACKED, PartitionBatches, batches_advance, batches_next, batches_t,
)

cdef extern from "<time.h>" nogil:
    const int CLOCK_MONOTONIC_COARSE


cdef inline int64_t _coarse_ns() noexcept nogil:
    """The monotonic clock to within a tick of the kernel (1-10 ms), at a tenth of the cost of the exact one."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


@cython.freelist(1024)
@cython.no_gc  # a cycle would need a key or value that refers to its own record
cdef class Record:
    """A record that was read; equal to another with the same fields."""

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
        key, value, headers=(),
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

    def replaced(self, key, value) -> Record:
        """A record with this key and value, and the other fields of this one."""
        cdef Record made = Record.__new__(Record)
        made.topic = self.topic
        made.partition = self.partition
        made.offset = self.offset
        made.timestamp_ms = self.timestamp_ms
        made.timestamp_type = self.timestamp_type
        made.key = key
        made.value = value
        made._headers = self._headers
        return made

    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

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


cdef inline int _step(batches_t* f, record_t* record) noexcept:
    """Read the next wanted record of the open batch: OK, BATCHES_END if it has none, or INVALID_RECORD."""
    cdef run_t* run = &f.run
    cdef cursor_t at
    while run.index < run.b.count:
        at = run.r
        if record_next(&run.r, record) != OK:
            run.r = at
            return INVALID_RECORD
        if record.offset_delta <= run.last_delta or record.offset_delta > run.b.last_offset_delta:
            run.r = at
            return INVALID_RECORD
        if run.b.base_offset + record.offset_delta >= f.end_offset:
            run.r = at
            return BATCHES_END
        run.index += 1
        run.last_delta = record.offset_delta
        if run.b.base_offset + record.offset_delta >= f.next_offset:
            return OK
    return INVALID_RECORD if cursor_left(&run.r) else BATCHES_END


cdef int _read_run(PartitionBatches batches, str topic, int32_t partition, Py_ssize_t most, list found) except -2:
    """Read records of the open batch, up to `most` in all; OK, or INVALID_RECORD."""
    cdef run_t* run = &batches.f.run
    cdef record_t record
    cdef int status = OK
    while len(found) < most:
        status = _step(&batches.f, &record)
        if status != OK:
            return OK if status == BATCHES_END else status
        found.append(_record(run, &record, topic, partition))
    if run.index == run.b.count and cursor_left(&run.r):
        return INVALID_RECORD
    return OK


cdef int _open(PartitionBatches batches, object decompress) except -2:
    """Open and decompress the next batch with requested records: OK, BATCHES_END, -ENOMEM or an error code."""
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
    """The partition's next records as objects, all that are left or `most`; `decompress` as for Columns.

    Raises LogError with the batch's offset; the records before it are returned by an earlier call."""
    cdef list found = []
    cdef int status = OK
    if batches.map is not None:
        raise TypeError("records are read as objects from memory, not from a FileMap")
    if batches.busy:
        raise RuntimeError("PartitionBatches are used by one thread at a time")
    batches.busy = True
    try:
        while status == OK and len(found) < most:
            try:
                status = _open(batches, decompress)
            except Exception:
                if found:
                    return found  # the next call raises the error
                raise
            if status == OK:
                status = _read_run(batches, topic, partition, most, found)
            if status == OK:
                batches_advance(&batches.f, len(found) == most)
            elif batches.f.running and batches.f.run.last_delta >= 0:  # the next call raises the next record's error
                batches.f.next_offset = max(
                    batches.f.next_offset, batches.f.run.b.base_offset + batches.f.run.last_delta + 1)
    finally:
        batches.busy = False
    if status not in (OK, BATCHES_END) and not found:
        batches.refuse(status)
    return found


cdef class RecordSteps:
    """An iterator over the records of a partition's batches, decoded one by one.

    It ends after the last whole batch, at a batch that does not parse, `lease_s` seconds after it was made, and once
    stop() is called; read_records() continues after the last record that was returned, and raises what is wrong."""

    cdef PartitionBatches batches
    cdef str topic
    cdef object decompress
    cdef int64_t until_ns
    cdef int64_t next_offset
    cdef int32_t partition

    def __init__(
        self, PartitionBatches batches not None, str topic not None, int32_t partition, decompress, double lease_s
    ):
        if batches.map is not None:
            raise TypeError("records are read as objects from memory, not from a FileMap")
        self.batches = batches
        self.topic = topic
        self.partition = partition
        self.decompress = decompress
        self.until_ns = _coarse_ns() + <int64_t>(lease_s * 1e9)
        self.next_offset = batches.f.next_offset

    def stop(self) -> int:
        """Return no more records, and let go of the batches; the offset after the last record that was returned."""
        self.batches = None
        return self.next_offset

    def take(self):
        """The next record, or None at the end."""
        cdef PartitionBatches batches = self.batches
        if batches is None or batches.busy or _coarse_ns() >= self.until_ns:
            return None
        batches.busy = True
        try:
            return self.read(batches)
        finally:
            batches.busy = False

    def __iter__(self):
        return self

    def __next__(self):
        found = self.take()
        if found is None:
            raise StopIteration
        return found

    cdef object read(self, PartitionBatches batches):
        cdef batches_t* f = &batches.f
        cdef record_t record
        cdef int status = OK
        while status == OK:
            try:
                status = _open(batches, self.decompress)
            except Exception:
                return None  # raised again by the call of read_records() that comes to this batch
            if status != OK:
                return None
            status = _step(f, &record)
            if status == OK:
                made = _record(&f.run, &record, self.topic, self.partition)
                if f.run.index < f.run.b.count or not cursor_left(&f.run.r):
                    batches_advance(f, True)
                else:  # what follows is at fault: read_records() says so
                    f.next_offset = f.run.b.base_offset + f.run.last_delta + 1
                self.next_offset = f.next_offset
                return made
            if status == BATCHES_END:
                batches_advance(f, False)
                status = OK
        return None
